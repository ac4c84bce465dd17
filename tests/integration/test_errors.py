"""Errors of inference callables reach the client and the log, and the next request is served."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    NO_BATCHING,
    InferenceServerException,
    at_once,
    bind_floats,
    connection_to,
    infer_json,
    json_floats,
    running_triton,
    send_floats,
    wait_until,
)
from streaming import bind_stream, stream_to

from pytriton.decorators import batch, sample
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

SERVER_LOG = "pytriton.server.tritonserver"
TWO_OUTPUTS = [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)]
PATIENT = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=300_000))


def fails_once(failing, outputs=1):
    """An inference callable that fails with its first requests, and later returns its input as each output."""
    calls = []

    def infer(requests):
        calls.append(len(requests))
        if len(calls) == 1:
            return failing(requests)
        return [[each["x"]] * outputs for each in requests]

    return infer


def error_then_success(triton, name):
    """Sends a request that is to fail and one that is not; returns the error that the client got."""
    status, reply = infer_json(triton, name, [json_floats([1, 2])])
    assert status == 500, reply
    assert send_floats(triton, name, [3, 4]) == [3, 4]
    error = reply["error"]
    assert error.startswith(f"model '{name}': ")
    assert "\n" not in error
    return error.removeprefix(f"model '{name}': ")


def logged(caplog, *texts):
    """The record of the server's log that has all the texts."""
    found = [
        record.getMessage() for record in caplog.records if record.name == SERVER_LOG and record.levelname == "ERROR"
    ]
    return next((message for message in found if all(text in message for text in texts)), None)


def explode(_):
    raise ZeroDivisionError("the sky fell")


def raise_from_cause(_):
    try:
        explode(None)
    except ZeroDivisionError as error:
        raise RuntimeError("cannot infer") from error


def test_an_exception_reaches_the_client_as_a_sentence_and_the_log_as_a_traceback(triton, name, caplog):
    bind_floats(triton, name, fails_once(explode))

    assert error_then_success(triton, name) == "ZeroDivisionError: the sky fell"

    message = wait_until(lambda: logged(caplog, name, "Traceback"))
    assert f"model '{name}': the inference callable failed" in message
    assert "in explode" in message
    assert 'raise ZeroDivisionError("the sky fell")' in message
    assert len(message.splitlines()) > 3


def test_a_traceback_is_one_record_whatever_the_environment_sets(monkeypatch, caplog):
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    with running_triton() as triton:
        bind_floats(triton, "model", fails_once(explode))
        triton.run()
        assert error_then_success(triton, "model") == "ZeroDivisionError: the sky fell"
        assert wait_until(lambda: logged(caplog, "model", "Traceback", "in explode", "ZeroDivisionError: the sky fell"))


def test_the_client_of_each_protocol_gets_the_error(triton, client, name):
    bind_floats(triton, name, explode)

    with pytest.raises(InferenceServerException) as caught:
        client.infer(name, {"x": np.ones((1, 1), np.float32)})

    assert caught.value.message() == f"model '{name}': ZeroDivisionError: the sky fell"


def test_the_cause_of_an_exception_is_in_the_log(triton, name, caplog):
    bind_floats(triton, name, fails_once(raise_from_cause))

    assert error_then_success(triton, name) == "RuntimeError: cannot infer"
    assert wait_until(lambda: logged(caplog, name, "the sky fell", "direct cause", "cannot infer"))


def test_messages_with_any_text_are_passed_unchanged(triton, name, caplog):
    text = "zażółć ✓ \"quoted\" 'single' back\\slash 100% {braces}"

    def fail(_):
        raise ValueError(text)

    bind_floats(triton, name, fails_once(fail))

    assert error_then_success(triton, name) == f"ValueError: {text}"
    assert wait_until(lambda: logged(caplog, name, text))


class LooksUpError(Exception):
    """Looks all its attributes up in a dictionary; Python looks for some when it prints an exception."""

    def __getattr__(self, name):
        return {"code": 404}[name]


def looks_up(_):
    raise LooksUpError("gone")


async def looks_up_in_coroutine(_):
    raise LooksUpError("gone")


def looks_up_in_stream(_):
    yield [{"y": np.zeros((1, 1), np.float32)}]
    raise LooksUpError("gone")


@pytest.mark.parametrize("infer", [looks_up, looks_up_in_coroutine, lambda requests: [LooksUpError("gone")]])
def test_an_exception_that_python_cannot_print_fails_its_request_alone(triton, name, infer, caplog):
    bind_floats(triton, name, infer, config=ModelConfig(max_batch_size=8, max_in_flight=1))
    for _ in range(3):
        assert send_floats(triton, name, [1]) == f"model '{name}': LooksUpError: gone"
    assert wait_until(lambda: logged(caplog, name, "LooksUpError: gone"))


def test_an_exception_in_a_stream_that_python_cannot_print_ends_it(triton, name):
    bind_stream(triton, name, looks_up_in_stream)
    for _ in range(3):
        with stream_to(triton) as stream:
            stream.send(name, 1)
            assert stream.reply().error is None
            assert "LooksUpError: gone" in str(stream.reply().error)


@pytest.mark.parametrize("letter", "é漢😀")
def test_a_long_error_of_any_letters_reaches_clients_over_grpc(triton, grpc_client, name, letter):
    def fail(_):
        raise ValueError(letter * 5000)

    bind_floats(triton, name, fail)
    for _ in range(20):  # gRPC drops headers of some size at random
        with pytest.raises(InferenceServerException, match=f"ValueError: {letter * 100}"):
            grpc_client.infer(name, {"x": np.ones((1, 1), np.float32)})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), StopIteration()])
def test_exceptions_that_are_not_errors_do_not_end_the_worker(triton, name, error):
    def fail(_):
        raise error

    bind_floats(triton, name, fails_once(fail))

    assert error_then_success(triton, name).startswith(type(error).__name__)


PLAIN = {
    "None": (
        lambda requests: None,
        "the inference callable returned None, not a list with one response per request",
    ),
    "a dictionary": (
        lambda requests: {"y": requests[0]["x"]},
        "the inference callable returned a dict, not a list with one response per request",
    ),
    "an array": (
        lambda requests: requests[0]["x"],
        "ndarray, not a list with one response per request",
    ),
    "no responses": (lambda requests: [], "the inference callable returned 0 responses to 1 requests"),
    "too many responses": (lambda requests: [*requests, *requests], "returned 2 responses to 1 requests"),
    "a response that is None": (lambda requests: [None], "the inference callable returned None: return a dictionary"),
    "a response that is an array": (lambda requests: [requests[0]["x"]], "ndarray: return a dictionary"),
    "a response that is text": (lambda requests: ["text"], "the inference callable returned a str"),
    "unknown outputs alone": (
        lambda requests: [{"w": requests[0]["x"]}],
        "returned an output 'w' that the model does not have: its outputs are 'y', 'z'",
    ),
    "too few outputs": (lambda requests: [[requests[0]["x"]]], "did not return the output 'z'"),
    "too many outputs": (
        lambda requests: [[requests[0]["x"]] * 3],
        "returned 3 outputs, but the model has 2: 'y', 'z'",
    ),
    "a value that the dtype lacks": (
        lambda requests: [[requests[0]["x"], [[2**24 + 1]]]],
        "output 'z' has dtype int64 and the value 16777217, which float32 cannot represent, but float32 (batch, -1) "
        "was declared: declare int64, or convert the output with np.asarray(value, 'float32')",
    ),
    "text for numbers": (
        lambda requests: [[requests[0]["x"], np.array([["a"]])]],
        "output 'z' has dtype <U1, but float32 (batch, -1) was declared",
    ),
    "too few dimensions": (
        lambda requests: [[requests[0]["x"], requests[0]["x"][0].tolist()]],
        "output 'z' has shape (2,), but float32 (batch, -1) was declared",
    ),
    "too many dimensions": (
        lambda requests: [[requests[0]["x"], requests[0]["x"][None].tolist()]],
        "output 'z' has shape (1, 1, 2), but float32 (batch, -1) was declared",
    ),
    "a list": (lambda requests: [[requests[0]["x"], [1.0, 2.0]]], "output 'z' has shape (2,), but float32 (batch, -1)"),
    "an output that is None": (lambda requests: [[requests[0]["x"], None]], "output 'z' is None, but float32 (batch"),
    "a number": (lambda requests: [{"y": requests[0]["x"], "z": 1.5}], "output 'z' has shape (), but float32 (batch"),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_an_invalid_response_is_explained_in_one_sentence(triton, name, kind, caplog):
    returned, expected = PLAIN[kind]
    triton.bind(name, fails_once(returned, outputs=2), FLOATS_IN, TWO_OUTPUTS)

    assert expected in error_then_success(triton, name)
    assert wait_until(lambda: logged(caplog, name, expected.split("'")[0]))


BATCHED = {
    "None": (lambda x: None, "the inference callable returned None"),
    "an array": (lambda x: x, "ndarray: return a dictionary"),
    "too few outputs": (lambda x: [x], "did not return the output 'z'"),
    "too many outputs": (lambda x: [x, x, x], "returned 3 outputs, but the model has 2"),
    "a wrong dtype": (lambda x: [x, x * 1j], "output 'z' has dtype complex64, but float32 (batch, -1) was declared"),
    "a wrong rank": (lambda x: [x, x[..., None].tolist()], "output 'z' has shape (1, 2, 1), but float32 (batch, -1)"),
    "a scalar": (lambda x: [x, x.sum()], "output 'z' has shape (), but float32 (batch, -1) was declared"),
    "no rows": (lambda x: {"y": x[:0], "z": x}, "output 'y' has 0 rows, but the batch has 1"),
    "a list without rows": (lambda x: [x, []], "output 'z' has shape (0,), but float32 (batch, -1)"),
    "a list of text": (lambda x: [x, [["a"]]], "output 'z' has dtype <U1, but float32 (batch, -1) was declared"),
    "a dictionary for each row": (
        lambda x: [{"y": x, "z": x}] * 3,
        "returned 3 dictionaries instead of one: return a single dictionary, below @batch with arrays over the whole",
    ),
    "a generator": (
        lambda x: iter([x, x]),
        "returned a generator, not a list with one response per request; return a list or, to send several responses "
        "to a request, set ModelConfig(decoupled=True)",
    ),
    "an output that is None": (lambda x: [x, None], "output 'z' is None, but float32 (batch, -1) was declared"),
}


def test_a_batch_of_a_fixed_size_may_be_computed(triton, name):
    @batch
    def infer(x):
        padded = np.zeros((8, x.shape[1]), np.float32)
        padded[: len(x)] = x
        return {"y": padded * 2}

    triton.bind(name, infer, FLOATS_IN, TWO_OUTPUTS[:1], config=ModelConfig(max_batch_size=8))

    assert at_once(6, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(6)]


@pytest.mark.parametrize("kind", BATCHED)
def test_an_invalid_output_of_a_batch_is_explained_in_one_sentence(triton, name, kind):
    returned, expected = BATCHED[kind]
    triton.bind(name, fails_once(batch(returned), outputs=2), FLOATS_IN, TWO_OUTPUTS)

    assert expected in error_then_success(triton, name)


def test_an_invalid_output_of_a_sample_is_explained_in_one_sentence(triton, name):
    triton.bind(name, fails_once(sample(lambda x: None), outputs=2), FLOATS_IN, TWO_OUTPUTS)

    assert "the inference callable returned None" in error_then_success(triton, name)


def test_bind_refuses_a_callable_that_does_not_accept_the_inputs(triton, name):
    with pytest.raises(PyTritonBadParameterError, match="takes 'other', and the inputs are 'x'"):
        bind_floats(triton, name, batch(lambda other: [other]))


def test_objects_other_than_bytes_are_refused(triton, name):
    triton.bind(
        name,
        batch(lambda x: [np.array([[b"a", 7]], object)]),
        FLOATS_IN,
        [Tensor(name="y", shape=(-1,), dtype=bytes)],
    )

    assert send_floats(triton, name, [1]) == (
        f"model '{name}': output 'y' contains 7, which is an int: use bytes or str"
    )


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        ({"z": np.ones((1, 1), np.float32)}, "PyTritonValidationError: the inference callable returned an output 'z'"),
        ({"y": np.array([["\ud800"]], object)}, "which UTF-8 cannot encode: use bytes, or text without surrogates"),
        ({"y": np.array([["a", None]], object)}, "output 'y' contains None, which is None: use bytes or str"),
    ],
    ids=["an unknown output", "text that has no bytes", "an element that is None"],
)
def test_the_log_has_the_mistake_and_no_error_of_the_package(triton, name, caplog, outputs, error):
    triton.bind(name, batch(lambda x: outputs), FLOATS_IN, [Tensor(name="y", shape=(-1,), dtype=bytes)])

    send_floats(triton, name, [1])
    assert wait_until(lambda: error in caplog.text)
    assert "During handling of the above exception" not in caplog.text
    assert "pytriton/proxy/tensors/outputs.py" not in caplog.text


def test_an_error_fails_every_request_of_its_batch(triton, grpc_client, name):
    bind_floats(triton, name, explode, config=PATIENT)

    def send(number):
        with pytest.raises(InferenceServerException) as caught:
            grpc_client.infer(name, {"x": np.full((1, 1), number, np.float32)})
        return caught.value.message()

    assert set(at_once(5, send)) == {f"model '{name}': ZeroDivisionError: the sky fell"}


def test_an_exception_that_is_returned_fails_its_request_alone(triton, grpc_client, name):
    sizes = []

    def odd_fails(requests):
        sizes.append(len(requests))
        return [
            ValueError(f"odd: {request['x'].item():.0f}") if request["x"].item() % 2 else {"y": request["x"]}
            for request in requests
        ]

    bind_floats(triton, name, odd_fails, config=PATIENT)

    def send(number):
        try:
            return grpc_client.infer(name, {"x": np.full((1, 1), number, np.float32)})["y"].item()
        except InferenceServerException as error:
            return error.message()

    assert at_once(6, send) == [
        number if number % 2 == 0 else f"model '{name}': ValueError: odd: {number}" for number in range(6)
    ]
    assert max(sizes) > 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x05", id="half a length"),
        pytest.param(struct.pack("<I", 5) + b"abc", id="shorter than its length"),
        pytest.param(struct.pack("<I", 2**32 - 1) + b"abc", id="a length beyond all memory"),
        pytest.param(struct.pack("<I", 1) + b"abc", id="longer than its length"),
        pytest.param(struct.pack("<I1sI", 1, b"a", 0), id="one element too many"),
    ],
)
def test_malformed_bytes_are_refused_and_serving_continues(triton, http_client, name, data):
    triton.bind(
        name,
        batch(lambda x: [x]),
        [Tensor(name="x", shape=(-1,), dtype=bytes)],
        [Tensor(name="y", shape=(-1,), dtype=bytes)],
    )
    import json

    head = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}]}
    ).encode()

    with connection_to(triton) as connection:
        connection.request(
            "POST", f"/v2/models/{name}/infer", head + data, {"Inference-Header-Content-Length": str(len(head))}
        )
        response = connection.getresponse()
        reply = json.loads(response.read())

    assert response.status == 400, reply
    assert "x" in reply["error"]
    assert http_client.infer(name, {"x": np.array([[b"abc"]], object)})["y"].tolist() == [[b"abc"]]


def test_data_that_does_not_match_its_shape_is_refused(triton, http_client, name):
    bind_floats(triton, name, batch(lambda x: [x]))

    status, reply = infer_json(triton, name, [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2]}])

    assert status >= 400
    assert "shape" in reply["error"].lower()
    assert send_floats(triton, name, [1]) == [1]


def test_unknown_models_inputs_and_outputs_are_refused(triton, client, name):
    bind_floats(triton, name, batch(lambda x: [x]))
    x = np.ones((1, 1), np.float32)

    with pytest.raises(InferenceServerException, match="unknown model"):
        client.infer(f"{name}_other", {"x": x})
    with pytest.raises(InferenceServerException, match=f"unexpected inference input 'w' for model '{name}'"):
        client.infer(name, {"w": x})
    with pytest.raises(InferenceServerException, match=f"unexpected inference output 'w' for model '{name}'"):
        client.infer(name, {"x": x}, outputs=["w"])
    assert client.infer(name, {"x": x})["y"].item() == 1


def test_a_wrong_number_of_dimensions_is_refused_by_the_server(triton, client, name):
    bind_floats(triton, name, batch(lambda x: [x]))

    with pytest.raises(InferenceServerException, match=f"unexpected shape for input 'x' for model '{name}'"):
        client.infer(name, {"x": np.ones((1, 1, 1), np.float32)})


def test_an_output_larger_than_memory_is_an_error_and_serving_continues(triton, name):
    def enormous(requests):
        return [[np.broadcast_to(np.float32(0), (1, 2**38))]]

    bind_floats(triton, name, fails_once(enormous), config=ModelConfig(max_batch_size=1))

    assert "larger than shared memory may be" in error_then_success(triton, name)


def test_errors_of_a_model_without_batching(triton, name):
    bind_floats(triton, name, sample(lambda x: [x[None]]), config=NO_BATCHING, strict=True)

    status, reply = infer_json(triton, name, [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}])

    assert status == 500
    assert reply["error"].startswith(f"model '{name}': output 'y' has shape (1, 1), but float32 (-1,) was declared: ")
