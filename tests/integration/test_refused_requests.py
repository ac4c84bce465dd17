"""Callables refuse requests with a status, which reaches clients of each protocol, and leaves the log clean."""

from __future__ import annotations

import json
import logging
import socket
import sys

import cloudpickle
import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    HOST,
    InferenceServerException,
    at_once,
    bind_floats,
    connection_to,
    free_config,
    infer_json,
    json_floats,
    send_floats,
)
from streaming import STREAMING, bind_stream, row, stream_to, together

from pytriton.decorators import batch, group_by_keys, group_by_values, sample
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

cloudpickle.register_pickle_by_value(sys.modules[__name__])

# By name: the status of HTTP, that of gRPC, and how the text begins.
TABLE = {
    "invalid_argument": (400, "INVALID_ARGUMENT", "invalid argument"),
    "not_found": (404, "NOT_FOUND", "not found"),
    "conflict": (409, "ALREADY_EXISTS", "conflict"),
    "already_exists": (409, "ALREADY_EXISTS", "conflict"),
    "too_many_requests": (429, "UNAVAILABLE", "too many requests"),
    "resource_exhausted": (429, "UNAVAILABLE", "too many requests"),
    "unavailable": (503, "UNAVAILABLE", "unavailable"),
}


def refuse(_):
    raise PyTritonInvalidRequestError("no negative numbers")


def respond_with_refusals(requests):
    return [PyTritonInvalidRequestError("no negative numbers") for _ in requests]


async def refuse_later(_):
    raise PyTritonInvalidRequestError("no negative numbers")


def refuse_in_stream(_):
    raise PyTritonInvalidRequestError("no negative numbers")
    yield


async def refuse_in_async_stream(_):
    raise PyTritonInvalidRequestError("no negative numbers")
    yield


def yield_refusals(requests):
    yield respond_with_refusals(requests)


@batch
def refuse_arrays(x):
    raise PyTritonInvalidRequestError("no negative numbers")


@batch
def return_a_refusal(x):
    return PyTritonInvalidRequestError("no negative numbers")


@sample
async def refuse_a_sample(x):
    raise PyTritonInvalidRequestError("no negative numbers")


class Refusing:
    def __call__(self, requests):
        refuse(requests)


CALLABLES = {
    "raised by a function": refuse,
    "returned in place of a response": respond_with_refusals,
    "raised by a coroutine": refuse_later,
    "raised below @batch": refuse_arrays,
    "returned below @batch": return_a_refusal,
    "raised by a coroutine below @sample": refuse_a_sample,
    "raised in a process": ProcessInstance(Refusing),
}
STREAMS = {
    "raised in a stream": refuse_in_stream,
    "raised in an async stream": refuse_in_async_stream,
    "yielded": yield_refusals,
    "raised by a decoupled function": refuse,
}


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("status", TABLE)
def test_the_status_over_each_protocol(triton, name, grpc_client, status):
    def refuse_with_status(_):
        raise PyTritonInvalidRequestError("that is so", status=status)

    bind_floats(triton, name, refuse_with_status)
    http, grpc, words = TABLE[status]
    assert infer_json(triton, name, [json_floats([1])]) == (http, {"error": f"{words}: that is so"})
    with pytest.raises(InferenceServerException) as caught:
        grpc_client.infer(name, {"x": row(1)})
    assert (caught.value.status(), caught.value.message()) == (f"StatusCode.{grpc}", f"{words}: that is so")


def test_the_status_of_each_response_among_others(triton, name):
    long_text = "no " * 30_000
    outcomes = [(200, None), (409, "conflict"), (500, None), (429, "too_many_requests"), (400, "invalid_argument")]

    def respond(requests):
        status, refusal = outcomes[int(requests[0]["x"][0, 0])]
        if refusal is not None:
            raise PyTritonInvalidRequestError(long_text, status=refusal)
        if status == 500:
            raise RuntimeError("conflict: too many requests: ")
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, respond, config=ModelConfig(max_batch_size=1))

    def send(number):
        with connection_to(triton) as connection:
            for i in range(50):
                which = (number + i) % len(outcomes)
                body = {"inputs": [json_floats([which])]}
                connection.request("POST", f"/v2/models/{name}/infer", json.dumps(body))
                response = connection.getresponse()
                assert response.status == outcomes[which][0]
                assert "outputs" in (reply := json.loads(response.read())) or reply["error"]

    at_once(6, send)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_status_line_of_each_version_of_http(triton, name, version):
    def refuse_for_now(_):
        raise PyTritonInvalidRequestError("later", status="too_many_requests")

    bind_floats(triton, name, refuse_for_now)
    body = json.dumps({"inputs": [json_floats([1])]})
    head = f"POST /v2/models/{name}/infer HTTP/{version}\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}"
    with socket.create_connection((HOST, triton.config.http_port), timeout=20) as connection:
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        reply = connection.makefile("rb").readline()
    assert reply.split() == [f"HTTP/{version}".encode(), b"429", b"Too", b"Many", b"Requests"]


@pytest.mark.parametrize("kind", CALLABLES)
def test_callables_of_every_kind(triton, name, caplog, kind):
    bind_floats(triton, name, CALLABLES[kind])
    expected = (400, {"error": "invalid argument: no negative numbers"})
    assert infer_json(triton, name, [json_floats([-1])]) == expected
    assert infer_json(triton, name, [json_floats([-1])]) == expected
    assert not warnings_in(caplog)


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_of_every_kind(triton, name, caplog, kind):
    bind_stream(triton, name, STREAMS[kind])
    with stream_to(triton) as stream:
        (reply,) = stream.send(name, -1).replies()
    assert reply.error == "invalid argument: no negative numbers"
    assert not warnings_in(caplog)


def test_responses_before_a_refusal_in_a_stream(triton, name):
    def count(requests):
        yield requests
        raise PyTritonInvalidRequestError("no more")

    bind_stream(triton, name, count, STREAMING)
    with stream_to(triton) as stream:
        first, second = stream.send(name, 1).replies()
    assert first.outputs["y"].tolist() == [[1]]
    assert second.error == "invalid argument: no more"


def only_positive(x):
    if (x < 0).any():
        raise PyTritonInvalidRequestError(f"{x.min():g} is negative")
    return {"y": x}


async def only_positive_later(x):
    return only_positive(x)


def outcomes(triton, name, numbers):
    return at_once(len(numbers), lambda number: send_floats(triton, name, [numbers[number]]))


@pytest.mark.parametrize("function", [only_positive, only_positive_later])
def test_below_sample_the_other_requests_of_a_batch_are_served(triton, name, function):
    bind_floats(triton, name, sample(function), config=together())
    assert outcomes(triton, name, [1, -2, 3]) == [[1], "invalid argument: -2 is negative", [3]]


def scaled(x, scale=None):
    return only_positive(x if scale is None else -x)


async def scaled_later(x, scale=None):
    return scaled(x, scale)


@pytest.mark.parametrize("function", [scaled, scaled_later])
def test_below_group_by_keys_the_other_groups_are_served(triton, name, function):
    inputs = [*FLOATS_IN, Tensor(name="scale", shape=(-1,), dtype=np.float32, optional=True)]
    triton.bind(name, group_by_keys(batch(function)), inputs, FLOATS_OUT, config=together())
    plain, with_scale = [json_floats([1])], [json_floats([1]), json_floats([2], "scale")]
    replies = at_once(4, lambda number: infer_json(triton, name, with_scale if number % 2 else plain)[0])
    assert replies == [200, 400, 200, 400]


@pytest.mark.parametrize("function", [only_positive, only_positive_later])
def test_below_group_by_values_all_requests_of_the_batch_are_refused(triton, name, function):
    bind_floats(triton, name, batch(group_by_values("x")(function)), config=together())
    assert set(map(str, outcomes(triton, name, [-2, -2]))) == {"invalid argument: -2 is negative"}


def test_an_unknown_status(triton, name):
    def refuse_wrongly(_):
        raise PyTritonInvalidRequestError("no", status="teapot")

    bind_floats(triton, name, refuse_wrongly)
    status, reply = infer_json(triton, name, [json_floats([1])])
    assert status == 500
    assert "is 'teapot'; use one of invalid_argument, not_found, conflict" in reply["error"]


def test_a_message_of_any_length(triton, name):
    def refuse_at_length(_):
        raise PyTritonInvalidRequestError("ż" * 1_000_000)

    bind_floats(triton, name, refuse_at_length)
    status, reply = infer_json(triton, name, [json_floats([1])])
    assert status == 400
    assert len(reply["error"]) < 5000


def test_a_refusal_leaves_a_line_for_debugging(triton, name, caplog):
    caplog.set_level(logging.DEBUG, "pytriton.proxy.tensors.failure")
    bind_floats(triton, name, refuse)
    send_floats(triton, name, [-1])
    (record,) = [each for each in caplog.records if each.name == "pytriton.proxy.tensors.failure"]
    assert record.getMessage() == f"Model {name!r} refused a request: invalid argument: no negative numbers"


def test_refusals_are_not_cached(name):
    calls = []

    def refuse_and_count(requests):
        calls.append(len(requests))
        refuse(requests)

    with Triton(config=free_config(cache_config=["local,size=1048576"])) as triton:
        triton.bind(name, refuse_and_count, FLOATS_IN, FLOATS_OUT, config=ModelConfig(response_cache=True))
        triton.run()
        for _ in range(2):
            assert send_floats(triton, name, [1]) == "invalid argument: no negative numbers"
    assert calls == [1, 1]
