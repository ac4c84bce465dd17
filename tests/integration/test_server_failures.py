"""Servers that crash and are not restarted, and unrecoverable errors: detected within a second, and reported."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    Background,
    InferenceServerException,
    bind_floats,
    client_of,
    double,
    held_model,
    is_ready,
    running_triton,
    send_floats,
    server_of,
    servers,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError, PyTritonUnrecoverableError

NOTICED_S = 1.0
X = np.ones((1, 1), np.float32)


def test_a_killed_server_is_detected_within_a_second():
    with running_triton(restart=False) as triton:
        bind_floats(triton, "double", double)
        triton.run()

        start = time.monotonic()
        server_of(triton).kill()
        wait_until(lambda: not triton.is_alive(), NOTICED_S)

        assert time.monotonic() - start < NOTICED_S
        assert not triton.is_connected()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_in_flight_fail_when_the_server_is_killed(protocol):
    with running_triton() as triton:
        entered, gate = held_model(triton, "hold")
        triton.run()
        with client_of(triton, protocol) as client:
            request = Background(lambda: client.infer("hold", {"x": X}))
            assert entered.wait(30)

            start = time.monotonic()
            server_of(triton).kill()
            request.finish()

            assert request.ended - start < NOTICED_S
            assert request.error is not None
        gate.set()


def test_serve_raises_when_the_server_is_killed(caplog):
    triton = running_triton(restart=False)
    bind_floats(triton, "double", double)
    serving = Background(lambda: triton.serve())
    wait_until(lambda: is_ready(triton))

    start = time.monotonic()
    server_of(triton).kill()
    serving.finish()

    assert serving.ended - start < NOTICED_S
    assert isinstance(serving.error, PyTritonRuntimeError)
    assert "exited unexpectedly: it was killed by SIGKILL" in str(serving.error)
    assert not triton.is_alive()


def test_a_server_that_was_killed_can_be_replaced():
    triton = running_triton(restart=False)
    bind_floats(triton, "double", double)
    triton.run()
    server_of(triton).kill()
    wait_until(lambda: not triton.is_alive())

    assert triton.stop() is True
    with triton:
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


def test_run_reports_a_killed_server():
    with running_triton(restart=False) as triton:
        triton.run()
        server_of(triton).kill()
        wait_until(lambda: not triton.is_alive())

        with pytest.raises(PyTritonRuntimeError, match="SIGKILL"):
            triton.run()


def test_a_failed_start_is_reported_with_the_last_lines():
    with pytest.raises(PyTritonRuntimeError, match="exited with status") as caught:
        running_triton(cache_config=["nosuchcache,size=1"]).run()

    assert "nosuchcache" in str(caught.value)
    assert not servers()


def test_stop_after_a_kill_leaves_nothing_behind(own_home):
    triton = running_triton(restart=False)
    bind_floats(triton, "double", double)
    triton.run()
    server_of(triton).kill()
    wait_until(lambda: not triton.is_alive())

    triton.stop()

    assert not list(own_home.iterdir())
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "pytriton-worker-double"])


def test_serve_raises_when_another_process_sends_sigterm_to_the_server():
    triton = running_triton(restart=False)
    bind_floats(triton, "double", double)
    serving = Background(lambda: triton.serve())
    wait_until(lambda: is_ready(triton))

    os.kill(server_of(triton).pid, signal.SIGTERM)
    serving.finish()

    assert isinstance(serving.error, PyTritonRuntimeError)
    assert "exited with status" in str(serving.error)


def give_up(requests):
    raise PyTritonUnrecoverableError("the GPU fell off the bus")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_unrecoverable_error_reaches_the_client_and_stops_the_server(protocol):
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        bind_floats(triton, "broken", give_up)
        triton.run()
        with client_of(triton, protocol) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("broken", {"x": X})

            assert caught.value.message() == "model 'broken': PyTritonUnrecoverableError: the GPU fell off the bus"
            wait_until(lambda: not triton.is_alive())
    assert not servers()


def test_serve_raises_the_unrecoverable_error():
    triton = running_triton()
    triton.bind("broken", batch(lambda x: give_up(x)), FLOATS_IN, FLOATS_OUT)
    serving = Background(lambda: triton.serve())
    wait_until(lambda: is_ready(triton))

    send_floats(triton, "broken", [1])
    serving.finish()

    assert isinstance(serving.error, PyTritonUnrecoverableError)
    assert str(serving.error) == "the GPU fell off the bus"
    assert not servers()


@pytest.fixture
def given_up():
    """A `Triton` whose server a callable has ended."""
    triton = running_triton()
    bind_floats(triton, "broken", give_up)
    triton.run()
    send_floats(triton, "broken", [1])
    wait_until(lambda: not servers())
    return triton


def test_serve_raises_an_earlier_unrecoverable_error(given_up):
    with pytest.raises(PyTritonUnrecoverableError, match="the GPU fell off the bus"):
        given_up.serve()
    assert not servers()


def test_running_again_clears_the_unrecoverable_error(given_up):
    given_up.run()
    given_up.stop()
    serving = Background(given_up.serve)
    wait_until(lambda: is_ready(given_up))
    given_up.stop()
    serving.finish()
    assert serving.error is None


def test_a_server_that_is_not_ready_in_time_is_reported_with_the_failed_connection(monkeypatch):
    monkeypatch.setattr("pytriton.server.local.DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0)

    with pytest.raises(PyTritonRuntimeError) as raised, running_triton() as triton:
        triton.run()

    port = r"127\.0\.0\.1 port \d+ \(TritonConfig\.http_port\)"
    report = rf"The server is not ready after 0 s\. {port} cannot be reached: .*Connection refused\. Its last lines:"
    assert re.match(report, str(raised.value))
