"""Refused requests: clients of every kind raise the same exception, with the status that the model gave."""

from __future__ import annotations

import asyncio

import pytest
from client_kinds import every_kind, open_client, url_of
from serving import bind_floats

from pytriton.client import (
    DecoupledModelClient,
    Failure,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidRequestError,
    RetryPolicy,
)
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.model_config import ModelConfig

STATUSES = {
    "invalid_argument": (400, Failure.REFUSED),
    "not_found": (404, Failure.REFUSED),
    "conflict": (409, Failure.REFUSED),
    "too_many_requests": (429, Failure.BUSY),
    "unavailable": (503, Failure.BUSY),
}


def refusing(status):
    @batch
    def refuse(x):
        raise PyTritonInvalidRequestError("that is so", status)

    return refuse


def check(error, status):
    http_status, failure = STATUSES[status]
    assert (error.status, error.http_status, error.reason, error.failure) == (
        status,
        http_status,
        "that is so",
        failure,
    )
    assert error.message.endswith(f"refused the request ({status.replace('_', ' ')}): that is so.")


@every_kind
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_of_a_refusal(triton, name, kind, protocol, status):
    bind_floats(triton, name, refusing(status), config=ModelConfig(decoupled="decoupled" in kind))
    with (
        open_client(kind, url_of(triton, protocol), name) as client,
        pytest.raises(PyTritonClientInvalidRequestError) as caught,
    ):
        client.infer_sample([1])
    check(caught.value, status)


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_in_the_servers_own_process(triton, name, status):
    bind_floats(triton, name, refusing(status))
    with pytest.raises(PyTritonClientInvalidRequestError) as caught:
        triton.client(name).infer_sample([1])
    check(caught.value, status)

    async def infer():
        await (await triton.aclient(name)).infer_sample([1])

    with pytest.raises(PyTritonClientInvalidRequestError) as caught:
        asyncio.run(infer())
    check(caught.value, status)


def test_a_refusal_within_a_stream(triton, name):
    @batch
    def count(x):
        yield {"y": x}
        raise PyTritonInvalidRequestError("no more")

    bind_floats(triton, name, count, config=ModelConfig(decoupled=True))
    with DecoupledModelClient(url_of(triton, "grpc"), name) as client:
        responses = client.infer_sample([1])
        assert next(responses)["y"] == [1]
        with pytest.raises(PyTritonClientInvalidRequestError) as caught:
            next(responses)
    assert caught.value.reason == "no more"


def test_an_exception_of_a_model_is_not_a_refusal(triton, name, url):
    @batch
    def fail(x):
        raise ValueError("not found: the answer")

    bind_floats(triton, name, fail)
    with ModelClient(url, name) as client, pytest.raises(PyTritonClientInferenceServerError) as caught:
        client.infer_sample([1])
    assert type(caught.value) is PyTritonClientInferenceServerError


@pytest.mark.parametrize(
    ("status", "attempts"), [("too_many_requests", 3), ("unavailable", 3), ("conflict", 1), ("invalid_argument", 1)]
)
def test_a_retry_policy_repeats_requests_that_may_be_served_later(triton, name, url, status, attempts):
    calls = []

    @batch
    def refuse(x):
        calls.append(len(x))
        if len(calls) < 3:
            raise PyTritonInvalidRequestError("that is so", status)
        return {"y": x}

    bind_floats(triton, name, refuse)
    with ModelClient(url, name, retry=RetryPolicy(attempts=3, pause_s=0.01)) as client:
        if attempts == 3:
            assert client.infer_sample([1])["y"] == [1]
        else:
            with pytest.raises(PyTritonClientInvalidRequestError):
                client.infer_sample([1])
    assert len(calls) == attempts
