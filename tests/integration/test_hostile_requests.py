"""Requests that crash the front end of Triton 2.51 or take its memory: refused, and others are served."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from serving import (
    HOST,
    InferenceServerException,
    at_once,
    bind_floats,
    client_of,
    connection_to,
    infer_json,
    metrics_of,
    request_json,
    running_triton,
    send_floats,
    server_of,
    wait_until,
)
from tritonclient.http import aio

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

ECHO = "Echo"
TEXTS = "Texts"
MANY = 300_000


@pytest.fixture(scope="module", autouse=True)
def models(triton):
    bind_floats(triton, ECHO, batch(lambda x: [x]))
    strings = {name: [Tensor(name=name, shape=(-1,), dtype=bytes)] for name in "xy"}
    triton.bind(TEXTS, batch(lambda x: [x]), strings["x"], strings["y"], config=ModelConfig(max_batch_size=8))


@pytest.fixture(autouse=True)
def _survives(triton):
    """The server is the same as before, and serves."""
    before = server_of(triton).pid
    yield
    assert server_of(triton).pid == before
    assert send_floats(triton, ECHO, [1, 2]) == [1, 2]


def post(triton, body, model=ECHO, headers=None):
    with connection_to(triton, timeout_s=60) as connection:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
        return connection.getresponse().status


@pytest.mark.parametrize(
    "shape",
    [
        [2**62],
        [1, 2**62],
        [1, 2**36],
        [1, 2**32],
        [2**31, 2**31, 2**31],
        [1] * 300,
        [3, 2**61, 7],
        [1, 0, 2**62, 2**62],
    ],
)
def test_an_impossible_shape_is_refused(triton, shape):
    status, reply = infer_json(triton, ECHO, [{"name": "x", "shape": shape, "datatype": "FP32", "data": [1.0]}])

    assert status == 400
    assert "input 'x' has" in reply["error"]


@pytest.mark.parametrize("shape", [[-1, 4], [1, -(2**63)]])
def test_a_negative_dimension_is_refused(triton, shape):
    assert infer_json(triton, ECHO, [{"name": "x", "shape": shape, "datatype": "FP32", "data": [1.0]}])[0] in (400, 500)


def test_an_impossible_shape_is_refused_over_grpc(triton):
    with client_of(triton, "grpc") as client:
        tensor = tritonclient.grpc.InferInput("x", [1, 2**62], "FP32")
        tensor.set_data_from_numpy = None
        tensor._raw_content = np.ones(4, np.float32).tobytes()
        with pytest.raises(InferenceServerException, match="takes more than 2147483648 bytes"):
            client.raw.infer(ECHO, [tensor])


def send_bytes(triton, model, shape, data):
    """Sends the bytes of ``x`` with any shape."""
    described = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [described]}).encode()
    with connection_to(triton) as connection:
        path = f"/v2/models/{model}/infer"
        connection.request("POST", path, head + data, {"Inference-Header-Content-Length": str(len(head))})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.parametrize("batcher", [DynamicBatcher(), DynamicBatcher(max_queue_delay_microseconds=20_000)])
def test_a_batch_of_no_samples_with_data_fails_alone(triton, name, batcher):
    config = ModelConfig(max_batch_size=16, batcher=batcher)
    shapes = set()

    @batch
    def echo(x):
        shapes.add(x.shape[1:])
        return [x]

    bind_floats(triton, name, echo, config=config)
    data = np.ones(4, np.float32).tobytes()

    def send(number):
        if number % 3:
            return [send_floats(triton, name, [number, 2, 3, 4]) == [number, 2, 3, 4] for _ in range(20)]
        status, reply = send_bytes(triton, name, [0, 4], data)
        return [status == 400 and "a batch of 0 samples has no data" in reply["error"] for _ in range(20)]

    assert all(all(each) for each in at_once(12, send))
    assert shapes == {(4,)}


def test_an_error_message_of_megabytes_is_shortened(triton, name, caplog):
    size = 50_000_000

    def fail(requests):
        raise ValueError("a" + "b" * size + "c")

    bind_floats(triton, name, fail)
    start = time.monotonic()
    error = send_floats(triton, name, [1])

    assert time.monotonic() - start < 5
    assert error.startswith(f"model {name!r}: ValueError: abbb")
    assert error.endswith("bbbc")
    assert "characters] …" in error
    assert len(error) < 5000
    assert max((len(record.getMessage()) for record in caplog.records), default=0) < 100_000


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_an_error_without_a_message_is_reported(triton, name, raised, is_async):
    class SilentError(Exception):
        def __str__(self):
            raise raised("no text")

    def fail(requests):
        raise SilentError

    async def fail_later(requests):
        raise SilentError

    bind_floats(triton, name, fail_later if is_async else fail)

    assert f"SilentError: <no text: {raised.__name__} in its __str__>" in send_floats(triton, name, [1])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_cannot_set_the_call_chain_of_its_request(triton, protocol):
    callers = {"pytriton_callers": f"x 0 1 {ECHO}\n"}

    with (
        client_of(triton, protocol) as client,
        pytest.raises(InferenceServerException, match="'pytriton_callers' is reserved for the server"),
    ):
        client.infer(ECHO, {"x": np.float32([[1]])}, parameters=callers)


def test_texts_are_not_classified(triton):
    inputs = [{"name": "x", "shape": [1, 2], "datatype": "BYTES", "data": ["a", "b"]}]
    wanted = [{"name": "y", "parameters": {"classification": 1}}]

    status, reply = infer_json(triton, TEXTS, inputs, outputs=wanted)

    assert status == 400
    assert "unsupported type 'BYTES'" in reply["error"]


def test_texts_are_not_classified_over_grpc(triton):
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([["a"]], object))
    with (
        client_of(triton, "grpc") as client,
        pytest.raises(InferenceServerException, match="unsupported type 'BYTES'"),
    ):
        client.raw.infer(TEXTS, [tensor], outputs=[tritonclient.grpc.InferRequestedOutput("y", class_count=1)])


def test_numbers_are_classified(triton):
    inputs = [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 3, 2]}]
    wanted = [{"name": "y", "parameters": {"classification": 2}}]

    status, reply = infer_json(triton, ECHO, inputs, outputs=wanted)

    assert status == 200
    assert reply["outputs"][0]["data"] == ["3.000000:1", "2.000000:2"]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["arrays", "objects"])
def test_deeply_nested_json_is_refused(triton, opening):
    assert post(triton, opening * (4_000_000 // len(opening))) in (400, 500)


def test_the_limit_on_tensors_applies_to_single_requests(triton):
    with client_of(triton, "grpc") as client:
        for _ in range(5000):
            client.infer(ECHO, {"x": np.ones((1, 1), np.float32)})


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_more_tensors_than_any_model_may_have_are_refused(triton, what):
    one = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]
    many = [{**one[0], "name": f"x{number}"} for number in range(MANY)]
    body = {"inputs": many} if what == "inputs" else {"inputs": one, "outputs": many}

    status, reply = request_json(triton, "POST", f"/v2/models/{ECHO}/infer", body)

    assert status == 400
    assert reply["error"] == f"the request has more than 4096 {what}"


def test_a_form_of_the_largest_allowed_size_is_survived(triton):
    body = b"a=" + b"x" * 60_000_000

    status = post(triton, body, headers={"Content-Type": "application/x-www-form-urlencoded"})

    assert status in (400, 500)


def test_a_compressed_body_without_a_request_is_survived(triton):
    body = gzip.compress(b"\0" * 100_000_000)

    assert post(triton, body, headers={"Content-Encoding": "gzip"}) in (400, 500)


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 2**64 - 1])
@pytest.mark.parametrize(
    "rest",
    ["Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
    ids=["length", "chunks"],
)
def test_a_wrong_content_length_is_refused(triton, rest, length):
    with socket.create_connection((HOST, triton.config.http_port), 60) as connection:
        path = f"/v2/models/{ECHO}/infer"
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{rest}".encode())

        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_body_in_one_byte_chunks_is_survived(triton):
    with connection_to(triton, timeout_s=60) as connection:
        connection.putrequest("POST", f"/v2/models/{ECHO}/infer")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        connection.send(b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n")

        assert connection.getresponse().status in (400, 500)


def test_all_responses_of_a_batch_larger_than_the_front_ends_queue_arrive(triton, name):
    count, waiting, gate = 300, [], threading.Event()

    def wait(requests):
        waiting.extend(requests)
        assert gate.wait(30)
        return requests

    def has_all():
        return len(waiting) + metrics_of(triton, name)["nv_inference_pending_request_count"] >= count

    bind_floats(triton, name, wait, config=ModelConfig(max_batch_size=500))

    async def send():
        client = aio.InferenceServerClient(f"{HOST}:{triton.config.http_port}", conn_limit=count)
        tensor = aio.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        gate.clear()
        waiting.clear()
        tasks = [asyncio.ensure_future(client.infer(name, [tensor])) for _ in range(count)]
        await asyncio.to_thread(wait_until, has_all)
        gate.set()
        done, pending = await asyncio.wait(tasks, timeout=20)
        await client.close()
        return len(done), len(pending)

    for _ in range(3):
        assert asyncio.run(send()) == (count, 0)


def test_a_server_that_takes_too_much_memory_is_restarted():
    with running_triton(memory_limit=200_000_000) as triton:
        bind_floats(triton, ECHO, batch(lambda x: [x]))
        triton.run()
        before = server_of(triton).pid
        with connection_to(triton) as connection, pytest.raises(OSError):
            connection.putrequest("POST", f"/v2/models/{ECHO}/infer")
            connection.putheader("Content-Length", "1000000000")
            connection.endheaders()
            for _ in range(1000):
                connection.send(b" " * 1_000_000)

        wait_until(lambda: not psutil.pid_exists(before))
        wait_until(triton.is_connected)
        assert send_floats(triton, ECHO, [3]) == [3]
