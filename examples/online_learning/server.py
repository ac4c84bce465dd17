"""Reads handwritten digits and learns from its users, until Ctrl-C: ``python examples/online_learning/server.py``."""

import threading

import numpy as np
from sklearn.linear_model import SGDClassifier

from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

IMAGE = Tensor((8, 8), np.float32, "image")
DIGIT = Tensor((1,), np.int64, "digit")

classifier = SGDClassifier(average=True, random_state=0)
lock = threading.Lock()  # the two models run in threads of their own


@batch
def classify(image: np.ndarray) -> dict[str, np.ndarray]:
    with lock:
        return {"digit": classifier.predict(image.reshape(-1, 64))[:, np.newaxis]}


@batch
def learn(image: np.ndarray, digit: np.ndarray) -> dict[str, np.ndarray]:
    with lock:
        classifier.partial_fit(image.reshape(-1, 64), digit[:, 0], classes=np.arange(10))
        return {"steps": np.full((len(image), 1), int(classifier.t_) - 1)}


with Triton() as triton:
    config = ModelConfig(max_batch_size=1024)
    triton.bind("Classify", classify, inputs=[IMAGE], outputs=[DIGIT], config=config)
    triton.bind("Learn", learn, inputs=[IMAGE, DIGIT], outputs=[Tensor((1,), np.int64, "steps")], config=config)
    triton.serve(gateway=GatewayConfig())
