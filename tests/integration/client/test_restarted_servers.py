"""Requests across restarts of the server: sent again by default, and each response is right."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import socket
import threading
import time

import numpy as np
import pytest
from client_kinds import open_client
from serving import HOST, bind_floats, double, held_model, is_ready, is_running, running_triton, server_of, wait_until

from pytriton.client import (
    AsyncioModelClient,
    Failure,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.model_config import ModelConfig

SLOWEST_S = 2


@pytest.fixture
def triton():
    with running_triton() as triton:
        bind_floats(triton, "double", double, config=ModelConfig(max_batch_size=64))
        triton.run()
        yield triton


def url_of(triton, protocol):
    return f"{protocol}://{HOST}:{getattr(triton.config, f'{protocol}_port')}"


def kill(triton):
    before = server_of(triton)
    before.kill()
    wait_until(lambda: not is_running(before))


def test_a_request_after_a_restart_succeeds(triton, kind, protocol):
    with open_client(kind, url_of(triton, protocol), "double") as client:
        for number in range(5):
            assert client.infer_sample(np.float32([number]))["y"] == [2 * number]
            kill(triton)


def test_a_request_in_flight_is_retried(triton, kind, protocol):
    entered, gate = held_model(triton, "hold")
    with open_client(kind, url_of(triton, protocol), "hold") as client:
        gate.set()
        client.infer_sample(np.float32([1]))
        entered.clear()
        gate.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            request = pool.submit(client.infer_sample, np.float32([2]))
            assert entered.wait(10)
            gate.set()
            kill(triton)
            assert request.result(20)["y"] == [2]


def test_connections_that_broke_are_closed_at_once(triton):
    """Not by the garbage collector."""
    port = triton.config.http_port

    def sockets():
        return [each for each in gc.get_objects() if isinstance(each, socket.socket)]

    def connections():
        return sum(_is_connected_to(each, port) and not any(each is other for other in others) for each in sockets())

    def wait_for_connections(count):  # that of the server's supervisor may be there for a moment
        wait_until(lambda: connections() == count, what=f"{count} connections")

    gc.collect()
    others = sockets()
    gc.disable()
    try:
        with ModelClient(url_of(triton, "http"), "double", restart_timeout_s=60) as client:
            for number in range(3):
                assert client.infer_sample(np.float32([number]))["y"] == [2 * number]
                wait_for_connections(1)
                kill(triton)
            client.infer_sample(np.float32([1]))
            wait_for_connections(1)
        wait_for_connections(0)
    finally:
        gc.enable()


def _is_connected_to(each, port):
    if each.fileno() == -1 or each.family != socket.AF_INET:
        return False
    with contextlib.suppress(OSError):
        return each.getpeername()[1] == port
    return True  # it broke


def test_waiting_for_a_server_that_stays_down_ends(triton, protocol):
    url = url_of(triton, protocol)
    with ModelClient(url, "double", restart_timeout_s=0.5) as client:
        client.infer_sample(np.float32([1]))
        triton.stop()
        start = time.monotonic()
        with pytest.raises(PyTritonClientTimeoutError) as caught:  # as nvidia-pytriton raises over HTTP
            client.infer_sample(np.float32([1]))
        assert isinstance(caught.value, PyTritonClientInferenceServerError)
        assert 0.3 < time.monotonic() - start < 3
        assert caught.value.failure is Failure.UNREACHABLE


def test_without_a_time_for_restarts_a_request_fails_at_once(triton, protocol):
    with ModelClient(url_of(triton, protocol), "double", restart_timeout_s=0) as client:
        client.infer_sample(np.float32([1]))
        triton.stop()
        start = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError):
            client.infer_sample(np.float32([1]))
        assert time.monotonic() - start < 0.5


def test_a_client_does_not_wait_for_a_server_that_never_responded(protocol):
    with ModelClient(f"{protocol}://{HOST}:1", "any", init_timeout_s=0.3, lazy_init=True) as client:
        start = time.monotonic()
        with pytest.raises(Exception, match=r"did not|not ready|took longer|reached"):
            client.infer_sample(np.float32([1]))
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("seconds", [-1, "1", True])
def test_an_invalid_time_for_restarts_is_refused(seconds):
    with pytest.raises(PyTritonClientValueError, match="restart_timeout_s"):
        ModelClient("localhost", "any", restart_timeout_s=seconds)


class Load:
    """Requests by all kinds of clients while the server is killed; keeps the wrong responses and the slowest one."""

    def __init__(self, triton, count, kills):
        self.wrong, self.slowest_s, self.sent = [], 0.0, 0
        self._triton, self._count, self._kills = triton, count, kills
        self._lock = threading.Lock()
        self._left, self._work = kills, []
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            senders = (self._send, self._send_asynchronously)
            self._work += [pool.submit(send, protocol) for send in senders for protocol in ("http", "grpc")]
            try:
                self._kill_now_and_then()
            finally:
                self._left = 0
            for each in self._work:
                each.result()

    @property
    def _is_running(self):
        return self._left > 0 and not any(each.done() for each in self._work)

    def _note(self, number, response, started):
        with self._lock:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            self.sent += 1
            if response["y"].tolist() != [2 * number]:
                self.wrong.append((number, response))

    def _send(self, protocol):
        with ModelClient(url_of(self._triton, protocol), "double") as client:
            number = 0
            while number == 0 or self._is_running:
                number += 1
                started = time.monotonic()
                self._note(number, client.infer_sample(np.float32([number])), started)

    def _send_asynchronously(self, protocol):
        async def send(client):
            number = 0
            while number == 0 or self._is_running:
                number += 1
                started = time.monotonic()
                self._note(number, await client.infer_sample(np.float32([number])), started)

        async def main():
            async with AsyncioModelClient(url_of(self._triton, protocol), "double") as client:
                await asyncio.gather(*[send(client) for _ in range(8)])

        asyncio.run(main())

    def _kill_now_and_then(self):
        for number in range(self._kills):
            while self.sent < number * self._count // self._kills and self._is_running:
                time.sleep(0.01)
            wait_until(lambda: is_ready(self._triton), 30)  # five starts in a row that fail are the end
            kill(self._triton)
            self._left -= 1
            if self._left == 1:
                wait_until(lambda: self.sent >= self._count or not self._is_running, 600)


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_request_is_lost_or_wrong_over_ten_kills(triton, count):
    load = Load(triton, count, kills=10)

    assert not load.wrong
    assert load.sent >= count
    assert load.slowest_s <= SLOWEST_S
