"""Requests that are sent again, and those that are not."""

from __future__ import annotations

import contextlib
import time

import pytest
from client_kinds import known, open_client
from peers import HOST, hanging_up_in_mid_response, listening, proxy_of, silent
from serving import Background, bind_floats, held_model, wait_until

from pytriton.client import (
    Failure,
    FuturesModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    RetryPolicy,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy

PATIENT = RetryPolicy(attempts=1000, pause_s=0.02, factor=1)
QUICK = RetryPolicy(attempts=4, pause_s=0.05, jitter=0)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@contextlib.contextmanager
def counting(behave):
    """A peer that counts what it is sent."""
    connections = []

    def count(connection):
        connections.append(connection)
        behave(connection)

    with listening(count) as port:
        yield port, connections


def test_requests_are_retried_until_the_server_has_started(triton, name, kind, protocol):
    bind_floats(triton, name, echo)
    persistent = RetryPolicy(attempts=1000, pause_s=0.02, factor=1, resend_lost=True)
    port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    with (
        proxy_of(port) as (proxy, own_port),
        open_client(kind, f"{protocol}://{HOST}:{own_port}", name, retry=persistent) as client,
    ):
        client.infer_sample([1])
        refused = []
        proxy.stand_in(refused.append)
        requested = Background(lambda: client.infer_sample([2]))
        wait_until(lambda: len(refused) >= 3)
        proxy.stand_in(None)
        assert requested.finish().result["y"] == [2]


def test_the_number_of_attempts_is_limited(kind, protocol):
    url = f"{protocol}://{HOST}:1"
    with open_client(kind, url, "any", retry=QUICK, **known(kind)) as client:
        started = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError) as caught:
            client.infer_sample([1])
        assert 0.05 + 0.1 + 0.2 <= time.monotonic() - started < 5
        assert caught.value.failure is Failure.UNREACHABLE


def test_all_attempts_together_stay_within_the_timeout(kind, protocol):
    with open_client(kind, f"{protocol}://{HOST}:1", "any", retry=PATIENT, **known(kind)) as client:
        started = time.monotonic()
        with pytest.raises((PyTritonClientInferenceServerError, PyTritonClientTimeoutError)):
            client.infer_sample([1], timeout_s=0.3)
        assert 0.2 < time.monotonic() - started < 2


def test_requests_are_retried_if_the_queue_of_the_server_is_full(triton, name, kind, url):
    policy = QueuePolicy(max_queue_size=1)
    config = ModelConfig(max_batch_size=1, batcher=DynamicBatcher(default_queue_policy=policy))
    entered, gate = held_model(triton, name, config=config)
    with FuturesModelClient(url, name) as others, open_client(kind, url, name, retry=PATIENT) as client:
        futures = [others.infer_sample([number]) for number in range(8)]
        assert entered.wait(30)
        wait_until(lambda: any(future.done() for future in futures))
        errors = [future.exception() for future in futures if future.done()]
        assert {error.failure for error in errors} == {Failure.BUSY}
        requested = Background(lambda: client.infer_sample([9]))
        gate.set()
        assert requested.finish(30).result["y"] == [9]


def test_requests_that_may_have_been_executed_are_retried_only_on_request(kind):
    again = RetryPolicy(attempts=3, pause_s=0.01, resend_lost=True)
    for retry, count in ((QUICK, 1), (again, 3)):
        with (
            counting(hanging_up_in_mid_response) as (port, connections),
            open_client(kind, f"{HOST}:{port}", "any", retry=retry, **known(kind)) as client,
        ):
            with pytest.raises(PyTritonClientInferenceServerError) as caught:
                client.infer_sample([1])
            assert caught.value.failure is Failure.LOST
            assert len(connections) == count


def test_a_request_that_timed_out_is_not_retried(kind):
    with (
        counting(silent) as (port, connections),
        open_client(kind, f"{HOST}:{port}", "any", retry=QUICK, **known(kind)) as client,
    ):
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([1], timeout_s=0.3)
        assert len(connections) == 1


def test_an_error_of_the_model_is_not_retried(triton, name, kind, url):
    calls = []

    def fail(requests):
        calls.extend(requests)
        raise ValueError("no")

    bind_floats(triton, name, fail)
    with (
        open_client(kind, url, name, retry=QUICK) as client,
        pytest.raises(PyTritonClientInferenceServerError, match="no"),
    ):
        client.infer_sample([1])
    assert len(calls) == 1
