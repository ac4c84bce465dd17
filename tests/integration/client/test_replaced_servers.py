"""Clients of servers that exit one after the other, each replaced by one at another address."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading

import numpy as np
import pytest
from client_kinds import open_triton, url_of
from serving import bind_floats, server_of, wait_until

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig


class Replicas:
    """Servers that end, each of which is replaced by one on other ports."""

    def __init__(self, count):
        self._stack = contextlib.ExitStack()
        self._running = {}
        for _ in range(count):
            self._start()

    def urls(self, protocol):
        return [urls[protocol] for urls in self._running.values()]

    def _start(self):
        triton = open_triton(restart_limit=0)
        bind_floats(triton, "double", batch(lambda x: [x * 2]), config=ModelConfig(max_batch_size=16))
        triton.run()
        self._stack.callback(triton.stop)
        self._running = {**self._running, triton: {each: url_of(triton, each) for each in ("http", "grpc")}}

    def _take_off(self, triton):
        self._running = {each: urls for each, urls in self._running.items() if each is not triton}

    def replace(self, killed, listed):
        """Stops or kills a server; its address may still be listed until the other one has started."""
        triton = next(iter(self._running))
        if not listed:
            self._take_off(triton)
        if killed:
            server_of(triton).kill()
        triton.stop()
        self._start()
        self._take_off(triton)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


class Load:
    """Requests of all kinds of clients, in threads; keeps what was wrong."""

    def __init__(self, replicas):
        self.wrong, self.sent, self._stop = [], 0, threading.Event()
        self._replicas = replicas
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._work = [
            self._pool.submit(send, protocol)
            for send in (self._send, self._send_async)
            for protocol in ("http", "grpc")
        ]

    def finish(self):
        self._stop.set()
        for each in self._work:
            each.result(60)
        self._pool.shutdown()

    def _check(self, number, response):
        self.sent += 1
        if response["y"].tolist() != [2 * number]:
            self.wrong.append((number, response))

    def _send(self, protocol):
        with ModelClient(lambda: self._replicas.urls(protocol), "double") as client:

            def send():
                number = 0
                while not self._stop.is_set():
                    number += 1
                    self._check(number, client.infer_sample(np.float32([number])))

            with concurrent.futures.ThreadPoolExecutor(3) as threads:
                for each in [threads.submit(send) for _ in range(3)]:
                    each.result()

    def _send_async(self, protocol):
        async def send(client):
            number = 0
            while not self._stop.is_set():
                number += 1
                self._check(number, await client.infer_sample(np.float32([number])))

        async def main():
            async with AsyncioModelClient(lambda: self._replicas.urls(protocol), "double") as client:
                await asyncio.gather(*[send(client) for _ in range(4)])

        asyncio.run(main())


MANY = [pytest.param(*counts, marks=pytest.mark.slow) for counts in ((3, 40), (1, 12))]


@pytest.mark.parametrize(("count", "replacements"), [(2, 4), *MANY])
def test_no_request_fails_while_servers_exit_and_are_replaced(count, replacements):
    with Replicas(count) as replicas:
        load = Load(replicas)
        try:
            for number in range(replacements):
                sent = load.sent
                wait_until(lambda sent=sent: load.sent > sent + 50, 30)
                replicas.replace(killed=number % 2 == 0, listed=number % 4 < 2)
            sent = load.sent
            wait_until(lambda: load.sent > sent + 50, 30)
        finally:
            load.finish()
        assert not load.wrong
