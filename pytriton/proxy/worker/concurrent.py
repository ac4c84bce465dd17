"""Concurrent execution: many batches at a time on one instance.

Counterpart of ``backend/model_instance/concurrent_executor.h``. Responses are sent per request, in any order across
requests. Coroutines and async generators run in the event loop of their model, generators in threads.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.json_logs import is_collecting
from pytriton.proxy.context import MODEL
from pytriton.proxy.services.client import CURRENT_CALLER, ServerClient, process_client
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.failure import RequestError, failure_of
from pytriton.proxy.tensors.log_context import LogContext
from pytriton.proxy.tensors.outputs import as_responses
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.tensors.warmup import Warmup
from pytriton.proxy.transport.arena import TRIM_AFTER_S, Arena, PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.types import Response
from pytriton.proxy.wire.encoding import ProtocolError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RequestFailure
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.coroutines import close_unstarted
from pytriton.proxy.worker.execution_mode import is_deferred, requests_for
from pytriton.proxy.worker.fair_turns import FairTurns
from pytriton.proxy.worker.in_flight import InFlightBatch
from pytriton.proxy.worker.response_writer import PendingResponse, ResponseWriter, is_end, response_of
from pytriton.proxy.worker.threads import MainThread, ThreadPool
from pytriton.proxy.worker.watchdog import Watchdog
from pytriton.utils.console import log_safely

if TYPE_CHECKING:
    import asyncio

LOGGER = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.05


class ConcurrentExecutor:
    """Executes the batches of one model instance concurrently.

    Args:
        channel: The connection, after its handshake.
        peer: The instance's arena.
        arena: The worker's arena for this connection.
        infer_func: The inference callable.
        signature: The model's declaration.
        loop: Runs coroutines, and receives notifications.
        threads: Runs all other callables; None for coroutine functions and async generator functions.
        on_close: Called in the loop's thread once the instance has disconnected.
        on_unrecoverable: Called with a PyTritonUnrecoverableError that the callable raised, after the responses.
        server_client: The client of the instance's service channel, closed at the end; None if the process has its own.
        watchdog: Reports calls that take too long.
    """

    def __init__(
        self,
        channel: Channel,
        peer: PeerArena,
        arena: Arena,
        infer_func: Callable[..., Any],
        signature: Signature,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPool | MainThread | None,
        on_close: Callable[[ConcurrentExecutor], None],
        on_unrecoverable: Callable[[PyTritonUnrecoverableError], None] | None,
        server_client: ServerClient | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._watchdog = watchdog
        self._own_server_client = server_client
        self._server_client = process_client() or server_client
        self._channel = channel
        self._peer = peer
        self._arena = arena
        self._infer_func = infer_func
        self._deferred = is_deferred(infer_func)
        self._requests_of = requests_for(infer_func)
        self._signature = signature
        self._warmup = Warmup(signature)
        self._loop = loop
        self._observe_batch_size: Callable[[int], None] = getattr(loop, "observe_batch_size", lambda _: None)
        self._threads = threads
        self._on_close = on_close
        self._on_unrecoverable = on_unrecoverable
        self._responses = ResponseWriter(channel, arena, signature, loop, self._deferred)
        self._lock = threading.Lock()  # guards the batches in flight
        self._in_flight: dict[int, InFlightBatch] = {}
        self._closed = False
        self._fileno = channel.fileno()
        self._last = 0.0  # when the last batch was completed
        self._next_poll: asyncio.TimerHandle | None = None
        self._turns = FairTurns(channel)
        self._idle = threading.Event()
        self._idle.set()

    def open(self) -> None:
        """Starts to receive notifications; called in the loop's thread."""
        if self._closed:
            return
        self._responses.open()
        try:
            self._loop.add_reader(self._fileno, self._receive)
        except OSError:  # the system's limit of watched files; the instance then connects again
            LOGGER.exception("A worker of model %r cannot be served and closes its connection.", self._signature.model)
            self._close()
            return
        self._poll()

    def end(self, reason: str) -> None:
        """Ends all batches in flight, and sends the clients the reason; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._end, reason)

    def wait(self, timeout_s: float) -> bool:
        """Waits until no batch is in flight; not to be called in the loop's thread.

        Returns:
            Whether no batch is in flight.
        """
        return self._idle.wait(timeout_s)

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which no batch has been in flight; now, if one is."""
        return time.monotonic() if self._in_flight else self._last

    def close(self) -> None:
        """Closes the connection; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._close)

    def _receive(self) -> None:
        try:
            for notification in self._channel.receive_several():
                self._submit(notification)
                if self._threads is None:
                    # Only after the loop has run all ready callbacks: requests that arrive meanwhile form one batch.
                    self._loop.call_soon(self._channel.acknowledge)
        except EOFError:
            LOGGER.debug("An instance of model %r disconnected.", self._signature.model)
            self._close()
        except Exception:
            LOGGER.exception("A worker of model %r failed and closes its connection.", self._signature.model)
            self._close()

    def _submit(self, notification: Notification) -> None:
        if notification.kind not in (NotificationKind.BATCH, NotificationKind.WARMUP):
            raise ProtocolError(f"unknown notification of kind {notification.kind}")
        lease = self._peer.lease(notification.offset, notification.size)
        is_warmup = notification.kind == NotificationKind.WARMUP
        batch = self._warmup.next_batch(lease) if is_warmup else Batch(lease, self._signature)
        in_flight = InFlightBatch(notification.sequence, batch, self._requests_of(batch))
        self._observe_batch_size(batch.request_count)
        with self._lock:
            if not self._in_flight:
                self._poll_in(_POLL_INTERVAL_S)
            self._in_flight[notification.sequence] = in_flight
            self._idle.clear()
        if self._threads is None:
            self._go_on_async(in_flight)
        elif is_collecting():
            self._threads.submit(lambda: self._serve_logged(in_flight))
        else:
            self._threads.submit(lambda: self._serve(in_flight))

    def _call(self, in_flight: InFlightBatch) -> Any:
        if self._deferred:
            return self._infer_func(in_flight.requests, functools.partial(self._respond, in_flight))
        return self._infer_func(in_flight.requests)

    def _respond(self, in_flight: InFlightBatch, request: int, item: object, final: bool, later: bool = False) -> None:
        """Sends a response to a request, or ends it, even after the callable has returned; called from any thread."""
        if later:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any more
                self._loop.call_soon_threadsafe(self._respond, in_flight, request, item, final)
            return
        now_ns = time.monotonic_ns()
        if item is None:
            response = PendingResponse(in_flight, request, final, now_ns)
        else:
            response = response_of(in_flight, request, item, final, now_ns, self._signature)
        self._responses.send([response], at_once=True)  # the sender may change its arrays afterwards
        self._complete(in_flight)

    async def _serve_async(self, in_flight: InFlightBatch, returned: Any = None) -> None:
        """Serves a batch in the loop; ``returned`` is the callable's return value if it was called before."""
        MODEL.set(self._signature.spec)
        CURRENT_CALLER.set((self._server_client, in_flight.sequence))
        in_flight.is_running = True
        error: BaseException | None = None
        if self._watchdog is not None:
            self._watchdog.begin(in_flight, in_flight.task)
        spans = in_flight.batch.spans
        if spans is not None:
            spans.enter()
        try:
            if in_flight.is_wanted:
                await self._call_async(in_flight, returned)
            else:
                close_unstarted(returned)
        except BaseException as caught:  # of any kind: the requests need a response, and the loop continues
            error = caught
        if spans is not None:
            spans.exit()
        if self._watchdog is not None:
            self._watchdog.end(in_flight)
        self._finish(in_flight, error)
        del error  # its traceback refers to this frame, which refers to the batch

    async def _call_async(self, in_flight: InFlightBatch, returned: Any) -> None:
        if returned is None:
            returned = self._call(in_flight)
        if hasattr(returned, "__aiter__"):
            await self._stream_async(in_flight, returned)
        else:
            self._send_returned(in_flight, await returned)

    def _send_returned(self, in_flight: InFlightBatch, returned: Any) -> None:
        """Sends the return value of a coroutine: as one result if it has all responses to the batch."""
        is_whole = not self._signature.spec.decoupled and in_flight.batch.spans is None
        if is_whole and self._deferred:
            is_whole = returned is not None and all(item is not None for item in returned)
        if not is_whole or not self._responses.send_result(in_flight, returned, time.monotonic_ns()):
            self._send_all(in_flight, returned)

    async def _stream_async(self, in_flight: InFlightBatch, steps: Any) -> None:
        import asyncio

        try:
            async for step in steps:
                self._send(in_flight, step)
                if not in_flight.is_wanted:
                    break
                await asyncio.sleep(0)  # lets other tasks run, and responses be sent
        finally:
            if hasattr(steps, "aclose"):
                await steps.aclose()

    def _serve(self, in_flight: InFlightBatch) -> None:
        """Serves a batch in this thread."""
        self._turns.begin(in_flight)
        MODEL.set(self._signature.spec)
        CURRENT_CALLER.set((self._server_client, in_flight.sequence))
        returned: Any = None
        is_awaited = False
        error: BaseException | None = None
        if self._watchdog is not None:
            self._watchdog.begin(in_flight)
        spans = in_flight.batch.spans
        if spans is not None:
            spans.enter()
        try:
            returned = self._call(in_flight) if in_flight.is_wanted else None
            is_awaited = inspect.isawaitable(returned) or hasattr(returned, "__aiter__")
            if is_awaited:
                pass  # below
            elif hasattr(returned, "__next__"):
                self._stream(in_flight, returned)
            elif in_flight.is_wanted:
                self._send_all(in_flight, returned)
        except BaseException as caught:
            error = caught
        finally:
            if spans is not None:
                spans.exit()
            if self._watchdog is not None:
                self._watchdog.end(in_flight)
        if is_awaited and error is None:
            try:
                self._loop.call_soon_threadsafe(self._go_on_async, in_flight, returned)
            except RuntimeError as closed:  # the loop is closed, with the worker
                error = closed
                close_unstarted(returned)
            else:
                if self._deferred:
                    self._responses.notify_returned(in_flight)
                return
        self._finish(in_flight, error)
        del error  # its traceback refers to this frame, which refers to the batch

    def _go_on_async(self, in_flight: InFlightBatch, returned: Any = None) -> None:
        serve = self._serve_async_logged if is_collecting() else self._serve_async
        in_flight.task = self._loop.create_task(serve(in_flight, returned))

    async def _serve_async_logged(self, in_flight: InFlightBatch, returned: Any) -> None:
        with LogContext(in_flight.batch):
            await self._serve_async(in_flight, returned)

    def _serve_logged(self, in_flight: InFlightBatch) -> None:
        with LogContext(in_flight.batch):
            self._serve(in_flight)

    def _stream(self, in_flight: InFlightBatch, steps: Any) -> None:
        try:
            for step in steps:
                self._send(in_flight, step)
                if not in_flight.is_wanted:
                    break
                self._turns.give_way(in_flight)
        finally:
            if hasattr(steps, "close"):
                steps.close()

    def _send(self, in_flight: InFlightBatch, step: object) -> None:
        """Sends one step of a stream to its requests."""
        if self._watchdog is not None:
            self._watchdog.progress(in_flight)
        now_ns = time.monotonic_ns()
        responses = []
        for request, item in enumerate(as_responses(step, len(in_flight.requests))):
            if item is None or request in in_flight.ended:
                continue
            if is_end(item):
                responses.append(PendingResponse(in_flight, request, True, now_ns))
            else:
                final = isinstance(item, BaseException) or (type(item) is Response and item.final)
                responses.append(response_of(in_flight, request, item, final, now_ns, self._signature))
        self._responses.send(responses)

    def _send_all(self, in_flight: InFlightBatch, returned: object) -> None:
        """Sends the callable's return value to the requests."""
        if self._deferred and returned is None:
            return
        now_ns = time.monotonic_ns()
        decoupled = self._signature.spec.decoupled
        self._responses.send(
            [
                PendingResponse(in_flight, request, True, now_ns)
                if decoupled and (item is None or is_end(item))
                else response_of(in_flight, request, item, True, now_ns, self._signature)
                for request, item in enumerate(as_responses(returned, len(in_flight.requests)))
                if not (self._deferred and item is None)
            ]
        )

    def _finish(self, in_flight: InFlightBatch, error: BaseException | None) -> None:
        """Ends the remaining requests of a batch after the callable has returned, unless its responses are deferred."""
        if self._deferred and error is None and in_flight.is_wanted:
            if in_flight.batch.spans is not None:
                in_flight.batch.spans.end_call()
            # The server then sends the next batch; if a task continues with this one, it was notified before.
            notify = self._threads is not None and in_flight.task is None
            self._responses.mark_returned(in_flight, notify=notify)
            self._complete(in_flight)
            return
        failure = self._failure(in_flight, error)
        spans = in_flight.batch.spans
        if spans is not None:
            if error is not None:
                spans.fail(error)
            spans.end_call()
        now_ns = time.monotonic_ns()
        left = [request for request in range(len(in_flight.requests)) if request not in in_flight.ended]
        if left:
            self._responses.send(
                [PendingResponse(in_flight, request, True, now_ns, failure) for request in left],
                at_once=error is not None,
            )
        in_flight.has_returned = True
        self._complete(in_flight)
        if isinstance(error, PyTritonUnrecoverableError) and self._on_unrecoverable is not None:
            self._on_unrecoverable(error)

    def _complete(self, in_flight: InFlightBatch) -> None:
        with self._lock:
            if (
                in_flight.has_ended
                and self._in_flight.pop(in_flight.sequence, None) is not None
                and not self._in_flight
            ):
                self._last = time.monotonic()
                self._idle.set()

    def _failure(self, in_flight: InFlightBatch, error: BaseException | None) -> RequestFailure | None:
        model = self._signature.model
        if in_flight.is_wanted:
            return None if error is None else failure_of(error, model)
        import asyncio

        if error is not None and not isinstance(error, asyncio.CancelledError):
            _log_unsent(in_flight, error, model)
        if in_flight.end_reason is None:
            return None  # no client is left
        return RequestFailure(0, ErrorCode.UNAVAILABLE, f"model {model!r}: {in_flight.end_reason}", "")

    def _poll(self) -> None:
        """Polls for cancelled requests; returns free memory to the system while nothing is in flight."""
        for in_flight in list(self._in_flight.values()):
            flags = in_flight.batch.cancelled()
            if flags == in_flight.cancelled:
                continue
            new = [request for request, flag in enumerate(flags) if flag and not in_flight.cancelled[request]]
            in_flight.cancelled = flags
            in_flight.unwanted.update(new)
            for request in new:
                in_flight.batch.cancel(request)
            if not in_flight.is_wanted:
                self._stop(in_flight)
        self._responses.retry()
        if not self._in_flight:
            before = time.monotonic() - TRIM_AFTER_S
            self._responses.trim(before)
            if self._server_client is not None:
                self._server_client.trim(before)
        self._poll_in(_POLL_INTERVAL_S if self._in_flight or self._responses.are_due else TRIM_AFTER_S)

    def _poll_in(self, delay_s: float) -> None:
        if self._next_poll is not None:
            self._next_poll.cancel()
        if not self._closed:
            self._next_poll = self._loop.call_later(delay_s, self._poll)

    def _end(self, reason: str) -> None:
        for in_flight in list(self._in_flight.values()):
            self._stop(in_flight, reason)

    def _stop(self, in_flight: InFlightBatch, reason: str | None = None) -> None:
        in_flight.end(reason)
        if in_flight.has_returned:  # nothing else ends its remaining requests
            self._finish(in_flight, None)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._responses.close()
        self._loop.remove_reader(self._fileno)
        if self._next_poll is not None:
            self._next_poll.cancel()
        self._end("the server is gone")
        self._channel.close()
        self._arena.close()
        if self._own_server_client is not None:
            self._own_server_client.close()
        self._on_close(self)


def _log_unsent(in_flight: InFlightBatch, error: BaseException, model: str) -> None:
    """Logs an exception that no request waits for any more."""
    level, when = logging.WARNING, "while being stopped"
    if in_flight.end_reason is None and not any(in_flight.cancelled):
        level, when = logging.ERROR, "after all its responses had been sent"
    message = f"The inference callable of model %r failed {when}."
    if isinstance(error, RequestError) and error.detail:  # which has the traceback of a model.py
        log_safely(LOGGER, level, f"{message}\n%s", model, error.detail)
    else:
        log_safely(LOGGER, level, message, model, exc_info=error)
