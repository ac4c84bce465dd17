"""Models from type hints, on the real server."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, TypedDict

import numpy as np
import pytest
import serving
from jaxtyping import Float32
from numpy.typing import NDArray
from scaler import Scaler

from pytriton.client import DecoupledModelClient, ModelClient, PyTritonClientInvalidRequestError
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.proxy.context import TritonContext

Rows = Float32[np.ndarray, "batch n"]


class Label(TypedDict):
    label: str
    score: float


@dataclasses.dataclass
class Statistics:
    mean: float
    sorted: NDArray[np.float64]
    notes: list[str]


def bind_all(triton):
    @triton.model(max_batch_size=16)
    def add(a: Rows, b: Rows | None = None) -> Rows:
        """Adds the given inputs."""
        return a if b is None else a + b

    @triton.model
    def classify(text: str, threshold: float = 0.5) -> Label:
        return {"label": "long" if len(text) > 3 else "short", "score": threshold}

    @triton.model(name="Describe")
    async def describe(numbers: list[float], note: str | None, context: TritonContext) -> Statistics:
        names = [context.model_config.name] if note is None else [note]
        return Statistics(float(np.mean(numbers)), np.sort(numbers), names)

    @triton.model
    def count(to: int) -> Iterator[str]:
        for number in range(to):
            yield f"{number}"

    @triton.model
    async def echo(words: list[str]) -> AsyncIterator[Label]:
        for word in words:
            yield {"label": word, "score": 1}

    @triton.model
    def power(x: Float32[np.ndarray, ""], exponent: np.int32) -> np.float32:
        assert x.shape == ()
        return np.float32(x**exponent)

    @triton.model(config=ModelConfig(max_batch_size=8))
    def negate(x: Float32[np.ndarray, "batch"]) -> Float32[np.ndarray, "batch"]:
        assert x.ndim == 1
        return -x

    @batch(max_batch_size=5)
    def double(x: Annotated[np.ndarray, Tensor((-1,), np.float32)]) -> Doubled:
        return {"y": x * 2}

    class Doubled(TypedDict):
        y: NDArray[np.float32]

    triton.bind(double)
    triton.bind("Scale", [ProcessInstance(Scaler, args=[3]), ProcessInstance(Scaler, args=[3])])
    assert add(np.ones(1), np.ones(1)) == 2


@pytest.fixture(scope="module", params=["bound before the start", "bound to a running server"])
def triton(request):
    with serving.running_triton() as triton:
        if request.param == "bound before the start":
            bind_all(triton)
        triton.run()
        if request.param == "bound to a running server":
            bind_all(triton)
        yield triton


def called(triton, model, *inputs, **named):
    return triton.client(model).infer_sample(*inputs, **named)


def test_batches(triton):
    one = np.ones(3, np.float32)
    assert called(triton, "add", one, one)["output"].tolist() == [2, 2, 2]
    assert called(triton, "add", one)["output"].tolist() == [1, 1, 1]
    assert triton.client("add").model_config.max_batch_size == 16
    assert triton.client("double").model_config.max_batch_size == 5
    assert called(triton, "double", one)["y"].tolist() == [2, 2, 2]


def test_values_of_python_over_http(triton):
    with ModelClient(f"localhost:{triton.config.http_port}", "classify") as client:
        response = client.infer_sample("hello", np.array([0.25]))
        assert (response["label"].item(), response["score"].item()) == (b"long", 0.25)
        assert client.infer_sample("hi")["score"].item() == 0.5


def test_fields_of_a_dataclass_and_the_context(triton):
    response = called(triton, "Describe", numbers=[3.0, 1.0], note="a note")
    assert response["mean"].item() == 2
    assert response["sorted"].tolist() == [1, 3]
    assert response["notes"].tolist() == [b"a note"]
    assert called(triton, "Describe", [1.0])["notes"].tolist() == [b"Describe"]


def test_streams_over_grpc(triton):
    url = f"grpc://localhost:{triton.config.grpc_port}"
    with DecoupledModelClient(url, "count") as client:
        assert [each["output"].item() for each in client.infer_sample(np.array([3]))] == [b"0", b"1", b"2"]
    with DecoupledModelClient(url, "echo") as client:
        words = [each["label"].item() for each in client.infer_sample(np.array(["a", "b"]))]
        assert words == [b"a", b"b"]


def test_scalars(triton):
    two, three = np.array([2], np.float32), np.array([3], np.int32)
    assert called(triton, "power", two, three)["output"].item() == 8
    rows = np.array([[1], [2]], np.float32)
    assert triton.client("negate").infer_batch(rows)["output"].tolist() == [[-1], [-2]]


def test_processes(triton):
    assert called(triton, "Scale", np.ones(2, np.float32))["output"].tolist() == [3, 3]


def test_invalid_text_is_refused(triton):
    with pytest.raises(PyTritonClientInvalidRequestError, match="input 'text' is not UTF-8 text"):
        called(triton, "classify", np.array([b"\xff"], object))


def test_unsupported_type_hints_bind_nothing(triton):
    def unclear(x, y: str) -> str: ...

    with pytest.raises(
        PyTritonBadParameterError, match=r"Model 'unclear': Function .*unclear.*: argument 'x' has no type"
    ):
        triton.bind(unclear)
    with pytest.raises(PyTritonBadParameterError, match=r"Model 'unclear': infer_func is None; write bind"):
        triton.bind("unclear")
    assert "unclear" not in dict(triton.report.ready_models())
