"""Long-running streams and coroutines, and the threads that run them."""

from __future__ import annotations

import asyncio
import collections
import threading
import time

from streaming import responses

STEP_S = 0.01


class Running:
    """Long-running callables of each kind, which count their running calls."""

    def __init__(self):
        self.counts = collections.Counter()
        self._lock = threading.Lock()

    def _add(self, kind, number):
        with self._lock:
            self.counts[kind] += number

    @property
    def total(self):
        return sum(self.counts.values())

    async def waits(self, requests):
        self._add("waits", 1)
        try:
            yield responses(requests, 0)
            await asyncio.sleep(60)
        finally:
            self._add("waits", -1)

    async def yields(self, requests):
        self._add("yields", 1)
        try:
            for value in range(10_000):
                yield responses(requests, value)
                await asyncio.sleep(STEP_S)
        finally:
            self._add("yields", -1)

    def generator(self, requests):
        self._add("generator", 1)
        try:
            for value in range(10_000):
                yield responses(requests, value)
                time.sleep(STEP_S)
        finally:
            self._add("generator", -1)

    async def coroutine(self, requests):
        self._add("coroutine", 1)
        try:
            await asyncio.sleep(60)
        finally:
            self._add("coroutine", -1)


STREAMS = ("waits", "yields", "generator")


def threads_of(name):
    return [each for each in threading.enumerate() if each.name in (f"pytriton-loop-{name}", f"pytriton-worker-{name}")]
