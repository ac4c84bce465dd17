"""Batches at a worker that takes many at a time: coroutines and streams. Twin of ``backend/pipeline.h``.

Answers go out for one request at a time, in any order across requests. Coroutines and async generators run in the event
loop of their model, generators in threads.
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
from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.proxy.context import MODEL
from pytriton.proxy.services.client import CALLER, Services, of_process
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.bytes_tensor import as_bytes
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.outputs import as_responses, checked_outputs, code_of
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import TRIM_AFTER_S, Arena, PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.types import Response
from pytriton.proxy.wire.encoding import ProtocolError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import Failure
from pytriton.proxy.wire.notification import Bell, BellKind
from pytriton.proxy.worker.execution_mode import is_deferred
from pytriton.proxy.worker.in_flight import Flight
from pytriton.proxy.worker.response_writer import Replies, Reply
from pytriton.proxy.worker.threads import ThreadPool

if TYPE_CHECKING:
    import asyncio

LOGGER = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05


class Pipeline:
    """What a model instance has a worker's inference callable do.

    Args:
        channel: The connection, behind its handshake.
        peer: The instance's arena.
        arena: The worker's arena for this connection.
        infer_func: The inference callable.
        signature: What was declared of the model.
        loop: Where coroutines run, and bells are heard.
        threads: Where all else runs; None where the callable is a coroutine function or an async generator function.
        on_close: Called in the loop's thread, once the instance has gone.
        on_unrecoverable: Told of a PyTritonUnrecoverableError that the callable raised, once its requests are answered.
        services: What the callable can ask of the server, closed at the end; None leaves it to what the process has.
    """

    def __init__(
        self,
        channel: Channel,
        peer: PeerArena,
        arena: Arena,
        infer_func: Callable[..., Any],
        signature: Signature,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPool | None,
        on_close: Callable[[Pipeline], None],
        on_unrecoverable: Callable[[PyTritonUnrecoverableError], None] | None,
        services: Services | None = None,
    ) -> None:
        """Does not listen yet."""
        self._own_services = services
        self._services = of_process() or services
        self._channel = channel
        self._peer = peer
        self._arena = arena
        self._infer_func = infer_func
        self._deferred = is_deferred(infer_func)
        self._signature = signature
        self._loop = loop
        self._threads = threads
        self._on_close = on_close
        self._on_unrecoverable = on_unrecoverable
        self._replies = Replies(channel, arena, signature, loop, self._deferred)
        self._lock = threading.Lock()  # of the flights
        self._flights: dict[int, Flight] = {}
        self._closed = False
        self._fileno = channel.fileno()
        self._last = 0.0  # when nothing was in flight any more
        self._next_look: asyncio.TimerHandle | None = None
        self._idle = threading.Event()
        self._idle.set()

    def open(self) -> None:
        """Starts to listen; in the loop's thread."""
        if self._closed:
            return
        self._replies.open()
        self._loop.add_reader(self._fileno, self._listen)
        self._look()

    def end(self, reason: str) -> None:
        """Ends all that is in flight, and tells the clients why; from any thread."""
        self._loop.call_soon_threadsafe(self._end, reason)

    def wait(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; in another thread than the loop's.

        Returns:
            Whether nothing is.
        """
        return self._idle.wait(timeout_s)

    def idle_since(self) -> float:
        """Since when nothing has been in flight, as ``time.monotonic()`` tells it; now, while something is."""
        return time.monotonic() if self._flights else self._last

    def close(self) -> None:
        """Ends the connection; from any thread."""
        self._loop.call_soon_threadsafe(self._close)

    def _listen(self) -> None:
        try:
            while (bell := self._channel.receive_now()) is not None:
                self._launch(bell)
        except EOFError:
            LOGGER.debug("An instance of model %r disconnected.", self._signature.model)
            self._close()
        except Exception:
            LOGGER.exception("A worker of model %r failed and drops its connection.", self._signature.model)
            self._close()

    def _launch(self, bell: Bell) -> None:
        if bell.kind != BellKind.BATCH:
            raise ProtocolError(f"a bell of kind {bell.kind} rang, which only a newer server could know")
        flight = Flight(bell.sequence, Batch(self._peer.lease(bell.offset, bell.size), self._signature))
        with self._lock:
            if not self._flights:
                self._look_in(_LOOK_EVERY_S)
            self._flights[bell.sequence] = flight
            self._idle.clear()
        if self._threads is None:
            flight.task = self._loop.create_task(self._serve_async(flight))
        else:
            self._threads.submit(lambda: self._serve(flight))

    def _call(self, flight: Flight) -> Any:
        if self._deferred:
            return self._infer_func(flight.requests, functools.partial(self._answer, flight))
        return self._infer_func(flight.requests)

    def _answer(self, flight: Flight, request: int, item: object, final: bool, later: bool = False) -> None:
        """Says something of a request, whether the callable has returned or not; from any thread."""
        if later:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._answer, flight, request, item, final)
            return
        now_ns = time.monotonic_ns()
        if item is None:
            reply = Reply(flight, request, final, now_ns)
        else:
            reply = self._reply_of(flight, request, item, final, now_ns)
        self._replies.send([reply], at_once=True)  # whoever sends may change the arrays afterwards
        self._land(flight)

    async def _serve_async(self, flight: Flight, returned: Any = None) -> None:
        """Has the callable serve a batch in the loop; ``returned`` is what it returned already, if it was called."""
        MODEL.set(self._signature.spec)
        CALLER.set((self._services, flight.sequence))
        flight.is_running = True
        error: BaseException | None = None
        try:
            if flight.is_wanted:
                await self._call_async(flight, returned)
            elif inspect.iscoroutine(returned):
                returned.close()
        except BaseException as caught:  # whatever it is: the requests must be answered, and the loop goes on
            error = caught
        self._finish(flight, error)
        del error  # its traceback holds this frame, and that holds the batch

    async def _call_async(self, flight: Flight, returned: Any) -> None:
        if returned is None:
            returned = self._call(flight)
        if hasattr(returned, "__aiter__"):
            await self._stream_async(flight, returned)
        else:
            self._send_all(flight, await returned)

    async def _stream_async(self, flight: Flight, steps: Any) -> None:
        import asyncio

        try:
            async for step in steps:
                self._send(flight, step)
                if not flight.is_wanted:
                    break
                await asyncio.sleep(0)  # others have their turn, and what was sent goes on its way
        finally:
            if hasattr(steps, "aclose"):
                await steps.aclose()

    def _serve(self, flight: Flight) -> None:
        """Has the callable serve a batch in this thread."""
        MODEL.set(self._signature.spec)
        CALLER.set((self._services, flight.sequence))
        error: BaseException | None = None
        try:
            returned = self._call(flight) if flight.is_wanted else None
            if inspect.isawaitable(returned) or hasattr(returned, "__aiter__"):
                self._loop.call_soon_threadsafe(self._go_on_async, flight, returned)
                return
            if hasattr(returned, "__next__"):
                self._stream(flight, returned)
            elif flight.is_wanted:
                self._send_all(flight, returned)
        except BaseException as caught:
            error = caught
        self._finish(flight, error)
        del error  # its traceback holds this frame, and that holds the batch

    def _go_on_async(self, flight: Flight, returned: Any) -> None:
        flight.task = self._loop.create_task(self._serve_async(flight, returned))

    def _stream(self, flight: Flight, steps: Any) -> None:
        try:
            for step in steps:
                self._send(flight, step)
                if not flight.is_wanted:
                    break
        finally:
            if hasattr(steps, "close"):
                steps.close()

    def _send(self, flight: Flight, step: object) -> None:
        """Answers requests with a step of a stream."""
        now_ns = time.monotonic_ns()
        replies = []
        for request, item in enumerate(as_responses(step, len(flight.requests))):
            if item is None or request in flight.ended:
                continue
            if _is_end(item):
                replies.append(Reply(flight, request, True, now_ns))
            else:
                final = isinstance(item, BaseException) or (type(item) is Response and item.final)
                replies.append(self._reply_of(flight, request, item, final, now_ns))
        self._replies.send(replies)

    def _send_all(self, flight: Flight, returned: object) -> None:
        """Answers requests with what there is to say of them."""
        if self._deferred and returned is None:
            return
        now_ns = time.monotonic_ns()
        decoupled = self._signature.spec.decoupled
        self._replies.send(
            [
                Reply(flight, request, True, now_ns)
                if decoupled and (item is None or _is_end(item))
                else self._reply_of(flight, request, item, True, now_ns)
                for request, item in enumerate(as_responses(returned, len(flight.requests)))
                if not (self._deferred and item is None)
            ]
        )

    def _reply_of(self, flight: Flight, request: int, item: object, final: bool, now_ns: int) -> Reply:
        if isinstance(item, BaseException):
            return Reply(flight, request, final, now_ns, failure_of(item, self._signature.model, request))
        outputs = checked_outputs(item, flight.batch, request, self._signature)
        for position, array in outputs.items():
            if code_of(array, position, self._signature) == BYTES_CODE:
                outputs[position] = as_bytes(array)
        parameters = item.parameters if type(item) is Response else None
        return Reply(flight, request, final, now_ns, None, outputs, parameters)

    def _finish(self, flight: Flight, error: BaseException | None) -> None:
        """Ends the requests of a batch that have not ended, once the callable has; not where answers are deferred."""
        if self._deferred and error is None and flight.is_wanted:
            self._replies.leave(flight, tell=self._threads is not None)  # the next batch may come
            self._land(flight)
            return
        failure = self._failure(flight, error)
        now_ns = time.monotonic_ns()
        left = [request for request in range(len(flight.requests)) if request not in flight.ended]
        self._replies.send(
            [Reply(flight, request, True, now_ns, failure) for request in left], at_once=error is not None
        )
        flight.has_returned = True
        self._land(flight)
        if isinstance(error, PyTritonUnrecoverableError) and self._on_unrecoverable is not None:
            self._on_unrecoverable(error)

    def _land(self, flight: Flight) -> None:
        with self._lock:
            if flight.has_ended and self._flights.pop(flight.sequence, None) is not None and not self._flights:
                self._last = time.monotonic()
                self._idle.set()

    def _failure(self, flight: Flight, error: BaseException | None) -> Failure | None:
        model = self._signature.model
        if flight.is_wanted:
            return None if error is None else failure_of(error, model)
        import asyncio

        if error is not None and not isinstance(error, asyncio.CancelledError):
            LOGGER.warning("The inference callable of model %r failed when it was to end.", model, exc_info=error)
        if flight.end_reason is None:
            return None  # nobody is there to be told
        return Failure(0, ErrorCode.UNAVAILABLE, f"model {model!r}: {flight.end_reason}", "")

    def _look(self) -> None:
        """Looks now and then for requests that are cancelled; gives memory back where there are none."""
        for flight in list(self._flights.values()):
            marks = flight.batch.cancelled()
            if marks == flight.cancelled:
                continue
            new = [request for request, mark in enumerate(marks) if mark and not flight.cancelled[request]]
            flight.cancelled = marks
            flight.unwanted.update(new)
            for request in new:
                flight.batch.cancel(request)
            if not flight.is_wanted:
                self._stop(flight)
        self._replies.retry()
        if not self._flights:
            before = time.monotonic() - TRIM_AFTER_S
            self._replies.trim(before)
            if self._services is not None:
                self._services.tidy(before)
        self._look_in(_LOOK_EVERY_S if self._flights or self._replies.are_due else TRIM_AFTER_S)

    def _look_in(self, delay_s: float) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if not self._closed:
            self._next_look = self._loop.call_later(delay_s, self._look)

    def _end(self, reason: str) -> None:
        for flight in list(self._flights.values()):
            self._stop(flight, reason)

    def _stop(self, flight: Flight, reason: str | None = None) -> None:
        flight.end(reason)
        if flight.has_returned:  # nothing else will end what is left of it
            self._finish(flight, None)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._replies.close()
        self._loop.remove_reader(self._fileno)
        if self._next_look is not None:
            self._next_look.cancel()
        self._end("the server is gone")
        self._channel.close()
        self._arena.close()
        if self._own_services is not None:
            self._own_services.close()
        self._on_close(self)


def _is_end(item: object) -> bool:
    """Whether an item ends its request without data."""
    return type(item) is Response and item.final and not item.data
