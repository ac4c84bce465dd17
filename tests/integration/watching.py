"""Long-running callables, and records of how they ended."""

from __future__ import annotations

import asyncio
import logging
import time

import tritonclient.grpc
from serving import HOST, wait_until
from streaming import responses, row

NOTICED_S = 1.0
FOREVER = 10_000
STEP_S = 0.01
TIMEOUT_US = 200_000


class Watched:
    """Long-running callables of each kind, which record when they were entered, and when and how they ended."""

    def __init__(self):
        self.entered = 0
        self.ended = []

    def _end(self, how):
        self.ended.append((how, time.monotonic()))

    async def waits(self, requests):
        """An async generator that yields once, and then only waits."""
        self.entered += 1
        try:
            yield responses(requests, 0)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self._end("cancelled")
            raise
        except GeneratorExit:
            self._end("closed")
            raise
        finally:
            self._end("finally")

    async def yields(self, requests):
        """An async generator that yields again and again."""
        self.entered += 1
        try:
            for value in range(FOREVER):
                yield responses(requests, value)
                await asyncio.sleep(STEP_S)
        finally:
            self._end("finally")

    async def yields_at_once(self, requests):
        """An async generator that never awaits anything."""
        self.entered += 1
        try:
            for value in range(1_000_000_000):
                yield responses(requests, value)
        finally:
            self._end("finally")

    def generator(self, requests):
        self.entered += 1
        try:
            for value in range(FOREVER):
                yield responses(requests, value)
                time.sleep(STEP_S)
        finally:
            self._end("finally")

    async def coroutine(self, requests):
        self.entered += 1
        try:
            await asyncio.sleep(60)
        finally:
            self._end("finally")

    def plain(self, requests):
        """A plain function that checks whether its request is cancelled."""
        self.entered += 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if requests[0].is_cancelled():
                break
            time.sleep(STEP_S)
        self._end("is_cancelled")
        return requests

    def wait_for_end(self, since):
        """Waits for the end of what runs, and checks that it took less than a second."""
        wait_until(lambda: self.ended, 10, "the end of the callable")
        assert self.ended[-1][1] - since < NOTICED_S


STREAMS = ("waits", "yields", "yields_at_once", "generator")


def start_unary(triton, name, number=1, **options):
    """Sends a request over gRPC; returns its context, which can cancel it, and the list that its error goes to."""
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(row(number))
    outcomes = []
    context = client.async_infer(name, [tensor], lambda result, error: outcomes.append(error or result), **options)
    return context, outcomes


def unwanted_records(caplog):
    """What the log holds that must not be there for a cancelled request."""
    return [
        record
        for record in caplog.records
        if record.name.startswith(("pytriton", "asyncio"))
        and record.levelno >= logging.WARNING
        and not record.getMessage().startswith("Other machines reach the server")
    ]
