"""Batches with more rows than the model takes at once."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from client_kinds import open_client
from serving import NO_BATCHING, bind_floats

from pytriton.client import (
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientValueError,
)
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor


@pytest.fixture(params=["futures", "asyncio"])
def kind(request):
    return request.param


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 1000])
def test_parts_are_joined_in_order(triton, name, kind, url, rows):
    bind_floats(triton, name, echo, config=ModelConfig(max_batch_size=8))
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    with open_client(kind, url, name) as client:
        assert (client.infer_batch(values)["y"] == values).all()


def test_several_parts_of_at_most_the_largest_batch_are_in_flight(triton, name, kind, url):
    rows, together = [], []

    def note(requests):
        together.append(len(requests))
        rows.extend(request["x"].shape[0] for request in requests)
        return echo(requests)

    bind_floats(triton, name, note, config=ModelConfig(max_batch_size=8))
    with open_client(kind, url, name) as client:
        client.infer_batch(np.zeros((100, 1), np.float32))
    assert sorted(rows) == [4] + [8] * 12


def test_all_inputs_are_split_alike(triton, name, kind, url):
    @batch
    def measure(a, b):
        return {"y": a.sum(1, keepdims=True) + np.float32([[len(text)] for (text,) in b])}

    inputs = [Tensor((-1,), np.float32, "a"), Tensor((1,), bytes, "b")]
    triton.bind(name, measure, inputs, [Tensor((1,), np.float32, "y")])
    a = np.arange(20, dtype=np.float32).reshape(10, 2)
    b = [["x" * number] for number in range(10)]
    with open_client(kind, url, name) as client:
        assert client.infer_batch(a=a, b=b)["y"].ravel().tolist() == [4 * n + 1 + n for n in range(10)]


def test_one_failing_part_fails_the_batch(triton, name, kind, url):
    def fail(requests):
        for request in requests:
            if (request["x"] == 50).any():
                raise ValueError("fifty")
        return echo(requests)

    bind_floats(triton, name, fail)
    with open_client(kind, url, name) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match="fifty"):
            client.infer_batch(np.arange(1000, dtype=np.float32).reshape(-1, 1))
        assert client.infer_batch([[1]])["y"] == [[1]]


def test_parts_that_cannot_be_joined(triton, name, kind, url):
    def widen(requests):
        return [{"y": np.tile(r["x"], (1, 1 + int(r["x"].max() > 90)))} for r in requests]

    bind_floats(triton, name, widen)
    with (
        open_client(kind, url, name) as client,
        pytest.raises(PyTritonClientInferenceServerError, match="cannot be joined"),
    ):
        client.infer_batch(np.arange(100, dtype=np.float32).reshape(-1, 1))


def test_a_progress_bar_on_request(triton, name, kind, url, capsys):
    bind_floats(triton, name, echo)
    with open_client(kind, url, name) as client:
        client.infer_batch(np.zeros((10, 1), np.float32))
        assert capsys.readouterr().err == ""
        client.infer_batch(np.zeros((10, 1), np.float32), progress=True)
    assert "10/10" in capsys.readouterr().err


def test_a_progress_bar_without_tqdm(triton, name, kind, url, monkeypatch):
    bind_floats(triton, name, echo)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with (
        open_client(kind, url, name) as client,
        pytest.raises(PyTritonClientValueError, match=r"pip install .*progress"),
    ):
        client.infer_batch(np.zeros((10, 1), np.float32), progress=True)


def test_an_input_named_progress(triton, name, kind, url):
    triton.bind(
        name,
        lambda r: [{"y": x["progress"]} for x in r],
        [Tensor((1,), np.float32, "progress")],
        [Tensor((1,), np.float32, "y")],
    )
    with open_client(kind, url, name) as client:
        assert client.infer_batch(progress=np.float32([[3]]))["y"] == [[3]]


def test_a_model_without_batching(triton, name, kind, url):
    bind_floats(triton, name, echo, config=NO_BATCHING)
    with open_client(kind, url, name) as client, pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
        client.infer_batch(np.zeros((1000, 1), np.float32))


def test_the_blocking_client_names_the_client_that_splits(triton, name, url):
    bind_floats(triton, name, echo)
    with (
        ModelClient(url, name) as client,
        pytest.raises(PyTritonClientValueError, match=r"has 5 rows, .* takes 4 at once; Futures"),
    ):
        client.infer_batch(np.zeros((5, 1), np.float32))
