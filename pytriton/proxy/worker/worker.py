"""Calls an inference callable for the model instances that are connected to it."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.context import MODEL
from pytriton.proxy.services.client import CALLER, Services, of_process
from pytriton.proxy.tensors.batch import Batch, WholeBatch
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.outputs import StackedOutputs
from pytriton.proxy.tensors.result import Results, write_result
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import TRIM_AFTER_S, Arena, ArenaError, PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.doorbell import can_sleep_there
from pytriton.proxy.transport.time_slice import wake_soon
from pytriton.proxy.wire.encoding import ProtocolError
from pytriton.proxy.wire.notification import Bell, BellKind
from pytriton.proxy.wire.service import CURRENT_BATCH
from pytriton.proxy.worker.concurrent import Pipeline
from pytriton.proxy.worker.execution_mode import in_flight_of, is_deferred, joins_requests, kind_of
from pytriton.proxy.worker.threads import EventLoop, ThreadPool

LOGGER = logging.getLogger(__name__)

InferenceCallable = Callable[..., Any]

_BATCHES = frozenset({BellKind.BATCH, BellKind.HEAD})
_RESULTS = frozenset({StackedOutputs, list, tuple})  # which are not to be awaited

ENDED = "the model is being unloaded, or the process that serves it ends"
"""What clients are told of streams that end before their time."""


class Worker:
    """One inference callable of a model.

    A model instance in the server connects to one worker. Where the callable is a plain function, a thread serves the
    instance, one batch at a time; while a model is being reloaded, its old and its new instance are connected at the
    same time, and the callable still serves one batch at a time. All other callables are served by pipelines.

    Args:
        infer_func: The inference callable: takes the list of requests of a batch, returns a list of responses.
        signature: What was declared of the model.
        on_unrecoverable: Told of a PyTritonUnrecoverableError that the callable raised, once its requests are answered.
        loop: The event loop of the model.
        owner_fd: A pidfd of the process without which the model is of no use, where it is not this one.
    """

    def __init__(
        self,
        infer_func: InferenceCallable,
        signature: Signature,
        on_unrecoverable: Callable[[PyTritonUnrecoverableError], None] | None = None,
        loop: EventLoop | None = None,
        owner_fd: int | None = None,
    ) -> None:
        """Keeps the callable; `start` has it called."""
        self._infer_func = infer_func
        self._requests_of = WholeBatch if joins_requests(infer_func) else Batch.requests
        self._signature = signature
        self._results = Results(signature)
        self._on_unrecoverable = on_unrecoverable
        self._owner_fds = () if owner_fd is None else (owner_fd,)
        name = f"pytriton-worker-{signature.model}"
        self._thread_name = name
        self._loop = loop or EventLoop(name)
        config = signature.spec.config
        kind = kind_of(infer_func)
        deferred = is_deferred(infer_func)
        self.in_flight = in_flight_of(kind, decoupled=config.decoupled, wanted=config.max_in_flight, deferred=deferred)
        """How many batches it takes at a time; 0 is one, which it answers as a whole."""
        self.in_turn = deferred and not kind.is_async
        """Whether it is called for one batch after the other, however many are in flight."""
        threads = 1 if self.in_turn else self.in_flight
        self._pool = ThreadPool(threads, name) if self.in_flight and not kind.is_async else None
        self._turn = threading.Lock()
        self._threads: dict[threading.Thread, Channel] = {}
        self._pipelines: set[Pipeline] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._retired = False
        self._last_ns = 0  # when a plain function returned last

    @property
    def signature(self) -> Signature:
        """What was declared of the model."""
        return self._signature

    @property
    def connections(self) -> int:
        """How many model instances are connected."""
        return len(self._threads) + len(self._pipelines)

    def idle_since(self) -> float:
        """Since when it has had nothing to do, as ``time.monotonic()`` tells it; now, while it has."""
        if self._turn.locked():
            return time.monotonic()
        return max([self._last_ns / 1e9, *(pipeline.idle_since() for pipeline in list(self._pipelines))])

    def start(self, channel: Channel, peer_fd: int, services: Services | None = None, doorbell: int = 0) -> None:
        """Serves a model instance until it disconnects.

        Args:
            channel: The connection, behind its hello.
            peer_fd: File descriptor of the instance's arena.
            services: What the callable can ask of the server, closed at the end; None leaves it to what the process
                has.
            doorbell: Where in the instance's arena it sleeps in lock-step; 0 is nowhere.
        """
        if self.in_flight:
            self._open_pipeline(channel, peer_fd, services)
            return
        thread = threading.Thread(
            target=self._run, args=(channel, peer_fd, services, doorbell), name=self._thread_name, daemon=True
        )
        with self._lock:
            if self._closed:
                channel.close()
                os.close(peer_fd)
                if services is not None:
                    services.close()
                return
            self._threads[thread] = channel
        thread.start()

    def retire(self) -> None:
        """Lets go of what it needs for new instances once those that are connected have gone."""
        with self._lock:
            self._retired = True
            is_empty = not self._pipelines
        if is_empty and self._pool is not None:
            self._pool.stop()

    def end_streams(self, reason: str) -> None:
        """Ends what pipelines have in flight, and tells the clients why."""
        for pipeline in list(self._pipelines):
            pipeline.end(reason)

    def close(self, timeout_s: float) -> None:
        """Disconnects, and waits for what is being served.

        Args:
            timeout_s: How long to wait for the inference callable to return.
        """
        with self._lock:
            self._closed = True
            threads = dict(self._threads)
        for channel in threads.values():
            channel.close()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for pipeline in list(self._pipelines):
            pipeline.end(ENDED)
        for pipeline in list(self._pipelines):
            pipeline.wait(max(0.0, deadline - time.monotonic()))
            pipeline.close()
        if self._pool is not None:
            self._pool.stop()

    def _open_pipeline(self, channel: Channel, peer_fd: int, services: Services | None) -> None:
        try:
            peer = PeerArena(peer_fd)
        except (OSError, ValueError):
            channel.close()
            if services is not None:
                services.close()
            raise
        loop = self._loop.enter()
        arena = Arena()
        pipeline = Pipeline(
            channel,
            peer,
            arena,
            self._infer_func,
            self._signature,
            loop,
            self._pool,
            self._forget,
            self._on_unrecoverable,
            services,
        )
        with self._lock:
            closed = self._closed
            if not closed:
                self._pipelines.add(pipeline)
        if closed:
            channel.close()
            arena.close()
            if services is not None:
                services.close()
            self._loop.leave()
            return
        try:
            channel.send(Bell(BellKind.WELCOME, 0, 0, 0), arena.fd, *self._owner_fds)
        except OSError:
            pipeline.close()
            return
        loop.call_soon_threadsafe(pipeline.open)

    def _forget(self, pipeline: Pipeline) -> None:
        with self._lock:
            self._pipelines.discard(pipeline)
            is_last = self._retired and not self._pipelines
        if is_last and self._pool is not None:
            self._pool.stop()
        self._loop.leave()

    def _run(self, channel: Channel, peer_fd: int, services: Services | None, doorbell: int) -> None:
        MODEL.set(self._signature.spec)
        CALLER.set((of_process() or services, CURRENT_BATCH))
        wake_soon()
        arena = Arena()
        try:
            peer = PeerArena(peer_fd)
            if not can_sleep_there():
                doorbell = 0
            channel.send(Bell(BellKind.WELCOME, 0, doorbell, 0), arena.fd, *self._owner_fds)
            if doorbell:
                channel.ring_at(peer.memory, doorbell)
            self._serve(channel, peer, arena)
        except (EOFError, OSError):
            LOGGER.debug("An instance of model %r disconnected.", self._signature.model)
        except BaseException:
            LOGGER.exception("A worker of model %r failed and drops its connection.", self._signature.model)
        finally:
            channel.close()
            arena.close()
            if services is not None:
                services.close()
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _serve(self, channel: Channel, peer: PeerArena, arena: Arena) -> None:
        met = 0
        while True:
            bell = channel.receive(met)
            if bell is None:
                met = 0
                before = time.monotonic() - TRIM_AFTER_S
                arena.trim(before)
                services, _ = CALLER.get()
                if services is not None:
                    services.tidy(before)
                continue
            if bell.kind not in _BATCHES:
                raise ProtocolError(f"a bell of kind {bell.kind} rang, which only a newer server could know")
            with self._turn:
                batch = Batch(peer.lease(bell.offset, bell.size), self._signature)
                if bell.kind == BellKind.HEAD:
                    channel.receive_data()
                offset, size, unrecoverable = self._infer(batch, arena)
                met = batch.request_count
                del batch  # so that its block is free by the time that the server has the result
            self._last_ns = time.monotonic_ns()
            channel.send((BellKind.RESULT, bell.sequence, offset, size))
            if unrecoverable is not None and self._on_unrecoverable is not None:
                self._on_unrecoverable(unrecoverable)

    def _infer(self, batch: Batch, arena: Arena) -> tuple[int, int, PyTritonUnrecoverableError | None]:
        """Serves a batch, and writes what came of it into the arena."""
        signature = self._signature
        unrecoverable = None
        start = end = time.monotonic_ns()
        try:
            returned = self._infer_func(self._requests_of(batch))
            if type(returned) not in _RESULTS and inspect.isawaitable(returned):
                import asyncio

                returned = asyncio.run_coroutine_threadsafe(_awaited(returned), self._loop.get()).result()
            end = time.monotonic_ns()
            return (*self._results.write(returned, batch, (start, end), arena), None)
        except ArenaError as error:
            failure = failure_of(error, signature.model)
        except PyTritonUnrecoverableError as error:
            failure = failure_of(error, signature.model)
            unrecoverable = error
        except BaseException as error:  # SystemExit too: the requests must be answered, and the server goes on
            failure = failure_of(error, signature.model)
        return (*write_result([], [failure], {}, batch, signature, (start, max(start, end)), arena), unrecoverable)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
