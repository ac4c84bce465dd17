"""Helpers of the tests of the concurrent executor: callables, and an executor without a worker."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.concurrent import ConcurrentExecutor
from pytriton.proxy.worker.threads import EventLoop

INTERNAL, UNAVAILABLE = 1, 4
SOON_S = 2  # in which what is to happen at once does, on a busy machine; the executor takes 0.05 s
OUTPUTS = [Tensor(name="y", shape=(-1,), dtype=np.float32)]


def x(*values):
    return {"x": np.array([values], np.float32)}


def y(*values):
    return {"y": np.array([values], np.float32)}


def one_by_one(kind, generator):
    """A generator function, as it is or as an async one."""

    async def steps(requests):
        for step in generator(requests):
            yield step

    return generator if kind == "generator" else steps


both = pytest.mark.parametrize("kind", ["generator", "async generator"])


def threads():
    return [each for each in threading.enumerate() if each.name in ("pytriton-worker-m", "pytriton-loop-m")]


class Direct:
    """An executor without a worker, for settings that a worker does not expose."""

    def __init__(self, infer_func, signature, *, capacity=1 << 26, pool=None):
        self.loop = EventLoop("pytriton-loop-m")
        self.closed = threading.Event()
        self._capacity = capacity
        self._arguments = (infer_func, signature, self.loop.get(), pool)

    def serve(self, channel, peer_fd):
        arena = Arena(self._capacity)
        self.executor = ConcurrentExecutor(
            channel, PeerArena(peer_fd), arena, *self._arguments, lambda executor: self.closed.set(), None
        )
        channel.send(Notification(NotificationKind.WELCOME, 0, 0, 0), arena.fd)
        self.loop.get().call_soon_threadsafe(self.executor.open)
