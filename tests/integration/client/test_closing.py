"""Closing a client while others wait, and leaving one with an error."""

from __future__ import annotations

import gc
import time

import pytest
from client_kinds import config_for, every_kind_that_loads, open_client, url_of
from peers import HOST, listening, silent
from serving import Background, bind_floats, held_model

from pytriton.client import (
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    RetryPolicy,
)
from pytriton.model_config import ModelConfig

# Futures clients complete all requests that were sent, see their own tests.
every_kind_but_futures = every_kind_that_loads
PATIENT = {"init_timeout_s": 60, "inference_timeout_s": 60}


def closes(client, requested):
    """Closes a client, and returns the error of a call that waits in the background."""
    started = time.monotonic()
    client.close()
    error = requested.finish().error
    assert time.monotonic() - started < 5
    return error


@every_kind_but_futures
def test_closing_fails_requests_that_wait_for_a_response(triton, name, kind, protocol):
    entered, gate = held_model(triton, name, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name, **PATIENT) as client:
        requested = Background(lambda: client.infer_sample([1]))
        assert entered.wait(30)
        error = closes(client, requested)
        gate.set()
    assert isinstance(error, PyTritonClientClosedError)


@every_kind_but_futures
@pytest.mark.parametrize("method", ["infer_sample", "wait_for_model"])
def test_closing_fails_calls_that_wait_for_a_server(kind, protocol, method):
    with listening(silent) as port, open_client(kind, f"{protocol}://{HOST}:{port}", "any", **PATIENT) as client:
        requested = Background(lambda: getattr(client, method)(60))
        time.sleep(0.3)
        assert requested.is_alive()
        error = closes(client, requested)
    assert isinstance(error, PyTritonClientClosedError)


@every_kind_but_futures
def test_the_configuration_can_be_read_when_the_client_is_closed(triton, name, kind, protocol):
    bind_floats(triton, name, lambda requests: requests, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name) as client:
        config = client.model_config
        client.close()
        triton.unbind(name)  # nothing is requested any more
        assert client.model_config is config
        if kind == "blocking":
            assert client.client.is_batching_supported
    with open_client(kind, url_of(triton, protocol), name) as client:
        client.close()
        with pytest.raises(PyTritonClientClosedError):
            client.model_config  # noqa: B018


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_closing_ends_the_pause_between_attempts(kind, protocol, triton, name):
    bind_floats(triton, name, lambda requests: requests)
    rare = RetryPolicy(attempts=10, pause_s=20, max_pause_s=20, jitter=0)
    with ModelClient(url_of(triton, protocol), name) as known:
        config = known.model_config
    with open_client(
        kind,
        f"{protocol}://{HOST}:1",
        name,
        model_config=config,
        ensure_model_is_ready=False,
        retry=rare,
        **PATIENT,
    ) as client:
        requested = Background(lambda: client.infer_sample([1]))
        time.sleep(0.3)
        assert requested.is_alive()
        assert isinstance(closes(client, requested), PyTritonClientClosedError)


def test_leaving_the_context_with_an_error_does_not_wait_for_futures(triton, name, url):
    entered, gate = held_model(triton, name, config=ModelConfig(max_batch_size=1))
    started = time.monotonic()
    with pytest.raises(KeyError, match="mine"), FuturesModelClient(url, name, max_workers=1, **PATIENT) as client:
        futures = [client.infer_sample([number]) for number in range(3)]
        assert entered.wait(30)
        raise KeyError("mine")
    assert time.monotonic() - started < 10
    assert all(future.done() for future in futures)
    gate.set()
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample([1])


def test_a_stream_keeps_its_client_alive(triton, name):
    def count(requests):
        for number in range(3):
            yield [{"y": 0 * request["x"] + number} for request in requests]

    bind_floats(triton, name, count, config=ModelConfig(decoupled=True))
    responses = DecoupledModelClient(url_of(triton, "grpc"), name).infer_sample([1])
    gc.collect()
    assert [response["y"].tolist() for response in responses] == [[0], [1], [2]]
