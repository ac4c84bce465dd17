"""Reads handwritten digits, until Ctrl-C: ``python examples/digits/server.py``."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

IMAGE = Tensor((8, 8), np.float64, "image")
DIGIT = Tensor((1,), np.int64, "digit")

digits = load_digits()
classifier = SVC(gamma=0.001).fit(digits.data[::2], digits.target[::2])


@batch
def classify(image: np.ndarray) -> dict[str, np.ndarray]:
    return {"digit": classifier.predict(image.reshape(-1, 64)).reshape(-1, 1)}


with Triton() as triton:
    triton.bind("Digits", classify, [IMAGE], [DIGIT], config=ModelConfig(max_batch_size=64))
    triton.serve(gateway=GatewayConfig())
