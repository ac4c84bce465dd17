"""A server, models and clients, as users write them."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from typing_extensions import assert_type

from pytriton import model
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.models import ModelDefinition
from pytriton.process import ProcessInstance
from pytriton.triton import Triton, TritonConfig

Rows = Float32[np.ndarray, "batch n"]
Vector = NDArray[np.float32]


class Label(TypedDict):
    label: str


triton = Triton(config=TritonConfig(http_port=8000))


@triton.model
def classify(text: str, limit: int = 3) -> Label:
    return {"label": text[:limit]}


@triton.model(max_batch_size=64)
def add(a: Rows, b: Rows) -> Rows:
    total: Rows = a + b
    return total


@model(name="Double", config=ModelConfig(max_batch_size=4))
def double(x: Rows) -> Rows:
    doubled: Rows = x * 2
    return doubled


@batch
def negate(x: Vector) -> dict[str, Vector]:
    return {"y": -x}


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Vector) -> Vector:
        return x * np.float32(self.factor)


def main() -> None:
    tensors = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
    with triton:
        triton.bind("Negate", negate, inputs=tensors, outputs=tensors, config=ModelConfig(max_batch_size=2))
        triton.bind("Scale", [Scaler(2), ProcessInstance(Scaler, args=[2])])
        triton.bind("Again", ModelDefinition(negate, tensors, tensors))
        triton.bind(double)
        triton.serve(gateway=GatewayConfig(port=8080))


def ask() -> None:
    with ModelClient("localhost", "Double") as client:
        response = client.infer_sample([1.0])
        assert_type(response["y"], np.ndarray[Any, np.dtype[Any]])
    assert_type(classify("text"), Label)
    assert_type(classify("text", limit=2)["label"], str)


classify(3)  # wrong: no text
triton.model(max_batch_sizes=3)  # wrong: there is no such setting
