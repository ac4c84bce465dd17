"""Mixed load: models of all kinds, and clients of all kinds that check every response."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import threading
import time

import cloudpickle
import numpy as np
from serving import HOST, bind_floats

from pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
    PyTritonClientInferenceServerError,
    RetryPolicy,
)
from pytriton.decorators import batch, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STREAM_LENGTH = 5
FACTORS = {"double": 2, "triple": 3, "quadruple": 4, "double_of_double": 4}
WORKER_GONE = ("worker has gone", "has no worker")


@batch
def double(x):
    return [x * 2]


def tripling():
    @batch
    def triple(x):
        return [x * 3]

    return triple


@batch
async def quadruple(x):
    await asyncio.sleep(0.001)
    return [x * 4]


@batch
def reverse(x):
    return [np.array([[text[::-1] for text in row] for row in x], object)]


@triton_context
def double_of_double(requests, triton_context):
    return [{"y": triton_context.infer("double", {"x": request["x"]})["y"] * 2} for request in requests]


async def count(requests):
    for number in range(STREAM_LENGTH):
        await asyncio.sleep(0.001)
        yield [{"y": request["x"] + number} for request in requests]


def bind_all(triton):
    config = ModelConfig(max_batch_size=64)
    bind_floats(triton, "double", double, config=config)
    bind_floats(triton, "triple", ProcessInstance(tripling), config=config)
    bind_floats(triton, "quadruple", quadruple, config=config)
    bind_floats(triton, "double_of_double", double_of_double, config=config)
    bind_floats(triton, "count", count, config=ModelConfig(max_batch_size=8, decoupled=True))
    texts = {name: [Tensor(name=name, shape=(-1,), dtype=bytes)] for name in "xy"}
    triton.bind("reverse", reverse, texts["x"], texts["y"], config=config)


class Load:
    """Clients of all kinds in threads; keeps what was wrong, how many responses came, and the slowest.

    Args:
        triton: The server.
        others: Models that were bound elsewhere, and what they multiply by.
    """

    def __init__(self, triton, **others):
        self.faults, self.responses, self.slowest_s, self.refused = [], 0, 0.0, 0
        self._urls = {kind: f"{kind}://{HOST}:{getattr(triton.config, f'{kind}_port')}" for kind in ("http", "grpc")}
        self._done = threading.Event()
        self._lock = threading.Lock()
        senders = [
            *(self._sender(kind, model, factor) for kind in self._urls for model, factor in (FACTORS | others).items()),
            self._sender("http", "double", 2, shared_memory=True, access_token=triton.get_access_token()),
            *(self._texts(kind) for kind in self._urls),
            *(self._futures(kind) for kind in self._urls),
            *(self._tasks(kind) for kind in self._urls),
            self._streams(),
        ]
        self._threads = [threading.Thread(target=self._run, args=(sender,), daemon=True) for sender in senders]
        for thread in self._threads:
            thread.start()

    def end(self):
        self._done.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, send):
        while not self._done.is_set():
            try:
                send()
            except Exception as error:
                with self._lock:
                    self.faults.append(repr(error))

    def _check(self, started, response, expected):
        with self._lock:
            self.responses += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            if response["y"].tolist()[: len(expected)] != expected:
                self.faults.append((response["y"].tolist(), expected))

    @contextlib.contextmanager
    def _killed_workers_refuse(self):
        """The requests that a killed process was serving fail."""
        try:
            yield
        except PyTritonClientInferenceServerError as error:
            if not any(text in error.message for text in WORKER_GONE):
                raise
            with self._lock:
                self.refused += 1

    def _sender(self, kind, model, factor, **options):
        def send():
            with ModelClient(self._urls[kind], model, restart_timeout_s=20, **options) as client:
                while not self._done.is_set():
                    values = [float(random.randrange(1000)) for _ in range(random.randrange(1, 2000))]
                    started = time.monotonic()
                    with self._killed_workers_refuse():
                        response = client.infer_sample(np.float32(values))
                        self._check(started, response, [value * factor for value in values])

        return send

    def _texts(self, kind):
        def send():
            with ModelClient(self._urls[kind], "reverse", restart_timeout_s=20) as client:
                while not self._done.is_set():
                    texts = [os.urandom(random.randrange(50)) for _ in range(random.randrange(1, 20))]
                    started = time.monotonic()
                    response = client.infer_sample(np.array(texts, object))
                    self._check(started, response, [text[::-1] for text in texts])

        return send

    def _futures(self, kind):
        def send():
            with FuturesModelClient(self._urls[kind], "double", restart_timeout_s=20) as client:
                while not self._done.is_set():
                    started = time.monotonic()
                    futures = [(number, client.infer_sample(np.float32([number]))) for number in range(20)]
                    for number, future in futures:
                        self._check(started, future.result(60), [2 * number])

        return send

    def _tasks(self, kind):
        async def cancel_or_check(client, number):
            started = time.monotonic()
            task = asyncio.ensure_future(client.infer_sample(np.float32([number])))
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.004)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._check(started, await task, [4 * number])

        async def main():
            async with AsyncioModelClient(self._urls[kind], "quadruple", restart_timeout_s=20) as client:
                while not self._done.is_set():
                    await asyncio.gather(*[cancel_or_check(client, number) for number in range(10)])

        return lambda: asyncio.run(main())

    def _streams(self):
        retry = RetryPolicy(attempts=1000, pause_s=0.02, factor=1, resend_lost=True)

        def send():
            with DecoupledModelClient(self._urls["grpc"], "count", retry=retry) as client:
                while not self._done.is_set():
                    started, number = time.monotonic(), random.randrange(100)
                    wanted = random.randrange(1, STREAM_LENGTH + 1)
                    try:
                        for step, response in enumerate(client.infer_sample(np.float32([number]))):
                            self._check(started, response, [number + step])
                            if step + 1 == wanted:
                                break
                    except PyTritonClientInferenceServerError as error:
                        if "broke before" not in error.message:  # streams are not sent again
                            raise

        return send
