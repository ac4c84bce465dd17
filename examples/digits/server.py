"""Reads handwritten digits, until Ctrl-C: ``python examples/digits/server.py``."""

from sklearn.datasets import load_digits
from sklearn.svm import SVC

from pytriton import GatewayConfig, Triton
from pytriton.adapters import sklearn_model

digits = load_digits()
classifier = SVC(gamma=0.001).fit(digits.data[::2], digits.target[::2])

with Triton() as triton:
    triton.bind("Digits", sklearn_model(classifier))
    triton.serve(gateway=GatewayConfig())
