"""Results that are not arrays of the declared dtype reach the client converted, from callables of every kind."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
from serving import FLOATS_IN, HOST, NO_BATCHING, bind_floats, infer_json, send_floats
from streaming import bind_stream, streamed, together

from pytriton.client import FuturesModelClient
from pytriton.decorators import batch, pad_batch, sample
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def listed(x):
    return {"y": (x / 2).tolist()}


async def listed_later(x):
    return listed(x)


def respond(requests):
    return [listed(request["x"]) for request in requests]


@batch
def with_doubles(x):
    return {"y": x.astype(np.float64) / 2}


class Listed:
    @batch
    def __call__(self, x):
        return listed(x)


CALLABLES = {
    "below @batch": batch(listed),
    "below @batch, in order": batch(lambda x: [listed(x)["y"]]),
    "below @sample": sample(listed),
    "below @pad_batch": batch(pad_batch(listed)),
    "a coroutine": batch(listed_later),
    "of requests": respond,
    "in a process": ProcessInstance(Listed),
    "another dtype": with_doubles,
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_results_of_callables_of_every_kind(triton, name, kind):
    bind_floats(triton, name, CALLABLES[kind], config=together())
    assert send_floats(triton, name, [1, 2]) == [0.5, 1]


def test_results_of_a_stream(triton, name):
    @batch
    def count(x):
        yield listed(x)
        yield {"y": (x / 4).astype(np.float64)}

    bind_stream(triton, name, count)
    (first, second, *_), _ = streamed(triton, name, 2)
    assert [first, second] == [1, 0.5]


NUMBERS = {
    "a number": (1.5, np.float32, "FP32", [1.5]),
    "an integer": (7, np.int16, "INT16", [7]),
    "a boolean": (True, np.bool_, "BOOL", [True]),
    "a string": ("grüezi", bytes, "BYTES", ["grüezi"]),
    "bytes": (b"hello", bytes, "BYTES", ["hello"]),
    "a scalar of NumPy": (np.int64(7), np.float32, "FP32", [7]),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_single_values_of_a_sample(triton, name, kind):
    value, dtype, datatype, expected = NUMBERS[kind]

    @sample
    def infer(x):
        return {"y": value}

    inputs = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
    triton.bind(name, infer, inputs, [Tensor(name="y", shape=(1,), dtype=dtype)], config=NO_BATCHING)
    _, reply = infer_json(triton, name, [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}])
    (output,) = reply["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == (datatype, [1], expected)


def test_rounding_is_logged_once(triton, name, caplog):
    @batch
    def thirds(x):
        return {"y": x.astype(np.float64) / 3}

    bind_floats(triton, name, thirds)
    for _ in range(3):
        assert send_floats(triton, name, [1]) == pytest.approx([1 / 3])
    (message,) = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert "output 'y' has dtype float64 and values such as 0.333" in message
    assert "which are converted to float32, as declared. Convert it with .astype('float32'), or" in message
    assert "Logged once" in message


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.bool_])
def test_a_strict_model_refuses_another_dtype_even_if_no_value_changes(triton, name, dtype):
    @batch
    def convert(x):
        return {"y": x.astype(dtype)}

    bind_floats(triton, name, convert, strict=True)
    error = send_floats(triton, name, [1])
    assert error.startswith(f"model '{name}': output 'y' has dtype {np.dtype(dtype)}, but float32 (batch, -1) was decl")


def bind_first(triton, name, dtype=np.float32, **settings):
    """Binds a function that returns a vector where a column was declared."""
    column = [Tensor(name="y", shape=(1,), dtype=dtype)]
    first = batch(lambda x: {"y": x[:, 0].astype(np.str_ if dtype is bytes else dtype)})
    triton.bind(name, first, FLOATS_IN, column, config=together(), **settings)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("dtype", "values"), [(np.float32, [1, 2, 3]), (bytes, [b"1.0", b"2.0", b"3.0"])])
def test_a_vector_for_a_declared_column_is_sent_unchanged(triton, name, protocol, dtype, values):
    bind_first(triton, name, dtype)
    port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    with FuturesModelClient(f"{protocol}://{HOST}:{port}", name) as client:
        one, two = client.infer_batch(np.float32([[1]])), client.infer_batch(np.float32([[2], [3]]))
        single = client.infer_sample(np.float32([1]))
        assert one.result()["y"].tolist() + two.result()["y"].tolist() == values
        assert single.result()["y"] == values[0]


def test_a_strict_model_refuses_a_vector_for_a_column(triton, name):
    bind_first(triton, name, strict=True)
    assert send_floats(triton, name, [1]) == (
        f"model '{name}': output 'y' has shape (1,), but float32 (batch, 1) was declared: return "
        "array.reshape(-1, 1), or declare shape=()"
    )


def test_tensors_of_pytorch(triton, name):
    torch = pytest.importorskip("torch")

    @batch
    def infer(x):
        return {"y": torch.from_numpy(x.copy()).double() / 2}

    bind_floats(triton, name, infer)
    assert send_floats(triton, name, [1, 2]) == [0.5, 1]
