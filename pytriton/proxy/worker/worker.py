"""The worker: calls an inference callable for the model instances that are connected to it."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.json_logs import is_collecting
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.context import BOUND, MODEL
from pytriton.proxy.cuda.driver import used_device
from pytriton.proxy.services.client import CURRENT_CALLER, ServerClient, process_client
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.log_context import LogContext
from pytriton.proxy.tensors.result import ResultWriter, write_result
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.tensors.warmup import Warmup
from pytriton.proxy.transport.arena import TRIM_AFTER_S, Arena, PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.doorbell import has_futex
from pytriton.proxy.transport.forks import FORKS, exit_fork
from pytriton.proxy.transport.time_slice import request_short_time_slice
from pytriton.proxy.wire.encoding import DeviceLocation, ProtocolError
from pytriton.proxy.wire.notification import OPENS_GPU_MEMORY, PAGE_LOCKED, Notification, NotificationKind
from pytriton.proxy.wire.registration import ExecutionMode
from pytriton.proxy.wire.service import CURRENT_BATCH
from pytriton.proxy.worker.concurrent import ConcurrentExecutor
from pytriton.proxy.worker.connected_instance import ConnectedInstance
from pytriton.proxy.worker.coroutines import run_in_loop
from pytriton.proxy.worker.execution_mode import (
    CallableKind,
    callable_kind,
    execution_mode,
    is_deferred,
    requests_for,
)
from pytriton.proxy.worker.threads import EventLoop, MainThread, ThreadPool
from pytriton.proxy.worker.watchdog import Watchdog
from pytriton.utils.console import log_safely

LOGGER = logging.getLogger(__name__)

InferenceCallable = Callable[..., Any]

_RESULTS = frozenset({StackedOutputs, list, tuple})  # types that are never awaitable

ENDED = "the model is being unloaded, or the process that serves it is exiting"
"""The reason sent to clients for streams that end early."""


class Worker:
    """Serves one inference callable of a model.

    A model instance in the server connects to one worker. A plain function is served by a thread, one batch at a time,
    even while a model is being reloaded and its old and new instances are both connected; the server may keep old ones
    for a long time. All other callables are served by a `ConcurrentExecutor`.

    Args:
        infer_func: The inference callable: takes the list of requests of a batch, and returns a list of responses.
        signature: The model's declaration.
        on_unrecoverable: Called with a PyTritonUnrecoverableError that the callable raised, after the responses.
        loop: The event loop of the model.
        owner_fd: A pidfd of the process on which the model depends, if it is not this one.
        on_hang: Called with True for each call, or step of a stream, that takes longer than
            ``ModelConfig.watchdog_secs``, and with False when it no longer hangs.
        main_thread: The thread in which the callable runs, unless it runs in several; a separate one by default.
    """

    def __init__(
        self,
        infer_func: InferenceCallable,
        signature: Signature,
        on_unrecoverable: Callable[[PyTritonUnrecoverableError], None] | None = None,
        loop: EventLoop | None = None,
        owner_fd: int | None = None,
        on_hang: Callable[[bool], None] | None = None,
        main_thread: MainThread | None = None,
    ) -> None:
        self.infer_func = infer_func
        """The inference callable."""
        BOUND.add(self)
        self._requests_of = requests_for(infer_func)
        self._forks = FORKS.count
        self._signature = signature
        self._results = ResultWriter(signature)
        self._on_unrecoverable = on_unrecoverable
        self._owner_fds = () if owner_fd is None else (owner_fd,)
        name = f"pytriton-worker-{signature.model}"
        self._thread_name = name
        self._loop = loop or EventLoop(name)
        config = signature.spec.config
        self._watchdog = (
            Watchdog(signature.model, config.watchdog_secs, on_hang, ends_process=owner_fd is not None)
            if config.watchdog_secs is not None and on_hang is not None
            else None
        )
        kind = callable_kind(infer_func)
        # With many streams, an iteration of the loop takes long, and the server would send only one batch in each.
        self._uses_doorbell = has_futex() and kind is not CallableKind.ASYNC_GENERATOR
        deferred = is_deferred(infer_func)
        self.mode, self.max_in_flight = execution_mode(
            kind, decoupled=config.decoupled, wanted=config.max_in_flight, deferred=deferred
        )
        threads = 1 if self.mode is ExecutionMode.DEFERRED else self.max_in_flight
        has_threads = self.mode is not ExecutionMode.SEQUENTIAL and not kind.is_async
        self._pool: ThreadPool | MainThread | None = None
        if has_threads:
            self._pool = ThreadPool(threads, name) if main_thread is None or threads > 1 else main_thread
        self._main_thread = main_thread
        self._turn = threading.Lock()
        self._connected: set[ConnectedInstance] = set()  # for a plain function
        self._executors: set[ConcurrentExecutor] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._retired = False
        self._last_ns = 0  # when a plain function last returned

    @property
    def signature(self) -> Signature:
        """The model's declaration."""
        return self._signature

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return self._signature.spec

    @property
    def connections(self) -> int:
        """Number of connected model instances."""
        with self._lock:
            return len(self._connected) + len(self._executors)

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which the worker has been idle; now, if it is busy."""
        if self._turn.locked():
            return time.monotonic()
        return max([self._last_ns / 1e9, *(executor.idle_since() for executor in list(self._executors))])

    def serve(
        self,
        channel: Channel,
        peer_fd: int,
        server_client: ServerClient | None = None,
        doorbell: int = 0,
        gpu_memory: int = 0,
    ) -> None:
        """Serves a model instance: in this thread until it disconnects, unless the callable has its own threads.

        Args:
            channel: The connection, after its HELLO.
            peer_fd: File descriptor of the instance's arena.
            server_client: The client of the instance's service channel, closed at the end; None if the process has its
                own.
            doorbell: Offset of the doorbell in the instance's arena; 0 for none.
            gpu_memory: Offset in that arena of the location of GPU memory that the instance offers; 0 for none.
        """
        try:
            peer = PeerArena(peer_fd)
        except (OSError, ValueError):
            channel.close()
            if server_client is not None:
                server_client.close()
            raise
        if not self._uses_doorbell:
            doorbell = 0
        if gpu_memory:
            with contextlib.suppress(ProtocolError):  # it lies outside the arena
                peer.devices.try_to_open(DeviceLocation.read(peer.memory, gpu_memory))
        if self.mode is not ExecutionMode.SEQUENTIAL:
            self._open_executor(channel, peer, server_client, doorbell)
            return
        connected = ConnectedInstance(channel, peer, server_client, doorbell, Warmup(self._signature))
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                for predecessor in self._connected:
                    predecessor.has_successor = True
                self._connected.add(connected)
        if is_closed:
            connected.close()
        elif self._main_thread is None:
            threading.current_thread().name = self._thread_name
            self._run(connected)
        elif self._welcome_connected(connected):  # here, because the main thread may be busy for a long time
            self._main_thread.submit(functools.partial(self._run, connected, self._main_thread))

    def retire(self) -> None:
        """Frees the resources for new instances once all connected ones have disconnected."""
        with self._lock:
            self._retired = True
            is_empty = not self._executors
        if is_empty and self._pool is not None:
            self._pool.stop()

    def end_streams(self, reason: str) -> None:
        """Ends coroutines and streams in flight, and sends the clients the reason."""
        for executor in list(self._executors):
            executor.end(reason)

    def close(self, timeout_s: float) -> None:
        """Disconnects all instances, and waits for running calls.

        Args:
            timeout_s: How long to wait for the inference callable to return.
        """
        with self._lock:
            self._closed = True
            all_connected = list(self._connected)
        for connected in all_connected:
            connected.channel.close()
        deadline = time.monotonic() + timeout_s
        for connected in all_connected:
            if connected.thread != threading.get_ident():
                connected.done.wait(max(0.0, deadline - time.monotonic()))
        for executor in list(self._executors):
            executor.end(ENDED)
        for executor in list(self._executors):
            executor.wait(max(0.0, deadline - time.monotonic()))
            executor.close()
        if self._pool is not None:
            self._pool.stop()
        if self._watchdog is not None:
            self._watchdog.close()

    def _open_executor(
        self, channel: Channel, peer: PeerArena, server_client: ServerClient | None, doorbell: int
    ) -> None:
        arena = Arena()
        try:
            loop = self._loop.enter()
        except BaseException:  # too many open files or threads
            arena.close()
            raise
        executor = ConcurrentExecutor(
            channel,
            peer,
            arena,
            self.infer_func,
            self._signature,
            loop,
            self._pool,
            self._forget,
            self._on_unrecoverable,
            server_client,
            self._watchdog,
        )
        with self._lock:
            closed = self._closed
            if not closed:
                self._executors.add(executor)
        if closed:
            channel.close()
            arena.close()
            if server_client is not None:
                server_client.close()
            self._loop.leave()
            return
        is_there = self._welcome(channel, peer, arena, doorbell)
        with contextlib.suppress(RuntimeError):  # the worker and its loop were closed meanwhile
            loop.call_soon_threadsafe(executor.open if is_there else executor.close)

    def _forget(self, executor: ConcurrentExecutor) -> None:
        with self._lock:
            self._executors.discard(executor)
            is_last = self._retired and not self._executors
        if is_last and self._pool is not None:
            self._pool.stop()
        self._loop.leave()

    def _welcome(self, channel: Channel, peer: PeerArena, arena: Arena, doorbell: int) -> bool:
        """Welcomes an instance; returns whether it is still connected."""
        use_doorbell = channel.use_doorbell if self.mode is ExecutionMode.SEQUENTIAL else channel.acknowledge_at
        try:
            flags = OPENS_GPU_MEMORY if peer.devices.has_opened else 0
            if os.environ.get("PYTRITON_PAGE_LOCKS") != "0" and used_device() is not None:
                flags |= PAGE_LOCKED
                for memory in (peer.memory, arena.memory):
                    memory.lock_blocks()
            channel.send(Notification(NotificationKind.WELCOME, 0, doorbell, flags), arena.fd, *self._owner_fds)
            if doorbell:
                use_doorbell(peer.memory, doorbell)
        except OSError:
            LOGGER.debug("An instance of model %r disconnected.", self._signature.model)
        except Exception:  # its doorbell is outside its arena
            LOGGER.exception("A worker of model %r failed and closes its connection.", self._signature.model)
        else:
            return True
        return False

    def _welcome_connected(self, connected: ConnectedInstance) -> bool:
        """Welcomes an instance of a plain function, or disconnects it; returns whether it is still connected."""
        is_there = self._welcome(connected.channel, connected.peer, connected.arena, connected.doorbell)
        if not is_there:
            self._disconnect(connected)
        return is_there

    def _disconnect(self, connected: ConnectedInstance) -> None:
        with self._lock:
            self._connected.discard(connected)
        connected.close()

    def _start_thread(self, connected: ConnectedInstance) -> None:
        threading.Thread(target=self._run, args=(connected,), name=self._thread_name, daemon=True).start()

    def _run(self, connected: ConnectedInstance, main_thread: MainThread | None = None) -> None:
        """Serves an instance, in the main thread if that is given, until a successor takes over there."""
        if main_thread is not None and main_thread.wake is not None:  # another instance is being served there
            if connected.has_successor:
                self._start_thread(connected)
            else:  # the other one has not noticed its successor yet
                main_thread.submit(functools.partial(self._run, connected, main_thread))
            return
        try:
            if self._main_thread is None and not self._welcome_connected(connected):
                return
            connected.thread = threading.get_ident()
            MODEL.set(self._signature.spec)
            CURRENT_CALLER.set((process_client() or connected.server_client, CURRENT_BATCH))
            request_short_time_slice()
            if main_thread is not None:
                main_thread.wake = connected.channel.wake
            self._serve(connected, main_thread)
        except (EOFError, OSError):
            LOGGER.debug("An instance of model %r disconnected.", self._signature.model)
        except BaseException:
            message = "A worker of model %r failed and closes its connection."
            log_safely(LOGGER, logging.ERROR, message, self._signature.model, exc_info=True)
        else:
            self._start_thread(connected)
            return
        finally:
            if main_thread is not None:
                main_thread.wake = None
        self._disconnect(connected)

    def _serve(self, connected: ConnectedInstance, main_thread: MainThread | None) -> None:
        """Serves the batches of an instance; returns once it has a successor in the main thread."""
        channel = connected.channel
        serve = self._serve_batch
        if main_thread is not None:
            channel.is_woken = True  # work may have been submitted before the thread could be woken
        elif self._main_thread is not None:
            serve = self._serve_batch_in_main_thread
        batch_size = 0
        while True:
            if channel.is_woken:
                channel.is_woken = False
                if main_thread is not None:
                    if connected.has_successor:
                        return
                    main_thread.run_submitted()
            notification = channel.receive(batch_size)
            if notification is None:
                batch_size = 0
                if self._trim(connected):
                    channel.rest()
                continue
            offset, size, batch_size, unrecoverable = serve(connected, notification)
            self._last_ns = time.monotonic_ns()
            channel.send((NotificationKind.RESULT, notification.sequence, offset, size))
            if unrecoverable is not None and self._on_unrecoverable is not None:
                self._on_unrecoverable(unrecoverable)

    def _trim(self, connected: ConnectedInstance) -> bool:
        """Returns unused memory to the system; returns whether there is nothing left to do while idle."""
        before = time.monotonic() - TRIM_AFTER_S
        server_client, _ = CURRENT_CALLER.get()
        is_empty = connected.arena.trim(before)
        return (server_client is None or server_client.trim(before)) and is_empty

    def _serve_batch(
        self, connected: ConnectedInstance, notification: Notification
    ) -> tuple[int, int, int, PyTritonUnrecoverableError | None]:
        """Serves a batch. Returns its result's offset and size, its number of requests, and an unrecoverable error."""
        with self._turn:
            lease = connected.peer.lease(notification.offset, notification.size)
            if notification.kind == NotificationKind.BATCH:
                batch = Batch(lease, self._signature)
            elif notification.kind == NotificationKind.WARMUP:
                batch = connected.warmup.next_batch(lease)
            else:
                raise ProtocolError(f"unknown notification of kind {notification.kind}")
            del lease  # the batch owns it
            if self._watchdog is not None:
                self._watchdog.begin(connected)
            infer = self._infer if batch.spans is None else self._infer_traced
            if is_collecting():
                with LogContext(batch):
                    offset, size, unrecoverable = infer(batch, connected.arena)
            else:
                offset, size, unrecoverable = infer(batch, connected.arena)
            if self._watchdog is not None:
                self._watchdog.end(connected)
            return offset, size, batch.request_count, unrecoverable  # frees the batch before the server gets the result

    def _serve_batch_in_main_thread(
        self, connected: ConnectedInstance, notification: Notification
    ) -> tuple[int, int, int, PyTritonUnrecoverableError | None]:
        assert self._main_thread is not None
        context = contextvars.copy_context()
        return self._main_thread.call(lambda: context.run(self._serve_batch, connected, notification))

    def _infer_traced(self, batch: Batch, arena: Arena) -> tuple[int, int, PyTritonUnrecoverableError | None]:
        assert batch.spans is not None
        batch.spans.enter()
        try:
            return self._infer(batch, arena)
        finally:
            batch.spans.exit()
            batch.spans.end()

    def _infer(self, batch: Batch, arena: Arena) -> tuple[int, int, PyTritonUnrecoverableError | None]:
        """Serves a batch, and writes its result into the arena."""
        signature = self._signature
        unrecoverable = None
        start = time.monotonic_ns()
        try:
            returned = self.infer_func(self._requests_of(batch))
            if FORKS.count != self._forks:
                exit_fork(signature.model)
            if type(returned) not in _RESULTS and inspect.isawaitable(returned):
                returned = run_in_loop(returned, self._loop.get())
            end = time.monotonic_ns()
            return (*self._results.write(returned, batch, (start, end), arena), None)
        except BaseException as error:  # including SystemExit: the requests need a response, and the server continues
            if FORKS.count != self._forks:
                exit_fork(signature.model)
            failure = failure_of(error, signature.model)
            if isinstance(error, PyTritonUnrecoverableError):
                unrecoverable = error
            if batch.spans is not None:
                batch.spans.fail(error)
        return (*write_result([], [failure], {}, batch, signature, (start, time.monotonic_ns()), arena), unrecoverable)
