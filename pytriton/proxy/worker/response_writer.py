"""What a pipeline replies with: answers on their way to the server."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.tensors.outputs import code_of
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Arena, ArenaError
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import ParameterValue
from pytriton.proxy.wire.inference import Answer, AnswerOutput, AnswersMessage, Failure, encode_answers
from pytriton.proxy.wire.notification import Bell, BellKind
from pytriton.proxy.worker.in_flight import Flight

if TYPE_CHECKING:
    import asyncio


class Reply(NamedTuple):
    """An answer whose arrays are not in shared memory yet; with neither arrays nor a failure, the end alone."""

    flight: Flight
    request: int
    final: bool
    end_ns: int
    failure: Failure | None = None
    outputs: dict[int, Array] | None = None
    parameters: dict[str, ParameterValue] | None = None


class Replies:
    """Sends the answers of a pipeline; from any thread.

    Args:
        channel: The connection.
        arena: Where the answers go.
        signature: What was declared of the model.
        loop: Where answers are collected, to be sent together.
        deferred: Whether several threads may answer a request, of whom the first to end it has the last word.
    """

    def __init__(
        self, channel: Channel, arena: Arena, signature: Signature, loop: asyncio.AbstractEventLoop, deferred: bool
    ) -> None:
        """Has nothing to send yet."""
        self._channel = channel
        self._arena = arena
        self._signature = signature
        self._loop = loop
        self._deferred = deferred
        self._lock = threading.Lock()  # of the arena and all below
        self._replies: list[Reply] = []
        self._last_words: list[Reply] = []  # errors in place of outputs for which there was no room
        self._flush_is_due = False
        self._closed = False
        self._loop_thread = 0

    @property
    def are_due(self) -> bool:
        """Whether there are errors for which there was no room."""
        return bool(self._last_words)

    def open(self) -> None:
        """Knows the loop's thread from now on: the one that calls this."""
        self._loop_thread = threading.get_ident()

    def close(self) -> None:
        """Sends nothing any more."""
        with self._lock:
            self._closed = True

    def send(self, replies: list[Reply], at_once: bool = False) -> None:
        """Sends answers: from the loop's thread with those of others, unless it is to be at once."""
        with self._lock:
            if self._deferred:  # several threads may have something to say of a request
                replies = [reply for reply in replies if reply.request not in reply.flight.ended]
            for reply in replies:
                if reply.final:
                    reply.flight.ended.add(reply.request)
                    reply.flight.unwanted.add(reply.request)
            self._replies += replies
            if at_once or threading.get_ident() != self._loop_thread:
                self._flush()
            elif not self._flush_is_due:
                self._flush_is_due = True
                self._loop.call_soon(self._flush_due)

    def leave(self, flight: Flight, tell: bool) -> None:
        """Notes that the callable has returned while requests may still wait; with ``tell``, the server hears of it."""
        with self._lock:
            flight.has_returned = True
            if tell and not flight.has_ended and not self._closed:
                with contextlib.suppress(OSError):  # the instance has gone; the loop will hear of it
                    self._channel.send(Bell(BellKind.RETURNED, flight.sequence, 0, 0))

    def retry(self) -> None:
        """Sends errors for which there was no room, if there is by now."""
        if self._last_words:
            with self._lock:
                self._flush()

    def trim(self, before: float) -> None:
        """Gives memory back that has been free since ``before``, as ``time.monotonic()`` tells it."""
        with self._lock:
            self._arena.trim(before)

    def _flush_due(self) -> None:
        with self._lock:
            self._flush_is_due = False
            self._flush()

    def _flush(self) -> None:
        # What cannot be sent was answered with an error, which is the last word.
        replies = [reply for reply in self._replies if reply.request not in reply.flight.unsendable]
        self._replies = []
        if self._closed:
            return
        try:
            if replies:
                self._write(replies)
        except ArenaError:
            for reply in replies:
                self._write_alone(reply)
        except OSError:
            pass  # the instance has gone; the loop will hear of it
        while self._last_words:
            try:
                self._write(self._last_words[:1])
            except (ArenaError, OSError):
                return  # tried again when it is looked for requests that are cancelled
            del self._last_words[0]

    def _write(self, replies: list[Reply]) -> None:
        layout = Layout()
        answers = []
        for flight, request, final, end_ns, failure, arrays, parameters in replies:
            laid_out = []
            for position, array in (arrays or {}).items():
                code = code_of(array, position, self._signature)
                laid_out.append(AnswerOutput(position, code, layout.add([array], array.shape, code)))
            response, times = arrays is not None, (flight.start_ns, end_ns)
            answers.append(
                Answer(flight.sequence, request, final, response, *times, failure, laid_out, parameters or {})
            )
        offset, size = layout.write(encode_answers(AnswersMessage(answers)).to_bytes(), self._arena)
        self._channel.send(Bell(BellKind.ANSWERS, 0, offset, size))

    def _write_alone(self, reply: Reply) -> None:
        """Sends an answer that there was no room for together with others; an error, if there is none for it alone."""
        flight, request = reply.flight, reply.request
        if request in flight.unsendable:
            return
        try:
            self._write([reply])
        except ArenaError as error:
            flight.unsendable.add(request)
            flight.ended.add(request)
            flight.unwanted.add(request)
            failure = failure_of(error, self._signature.model, request)
            self._last_words.append(Reply(flight, request, True, reply.end_ns, failure))
        except OSError:
            pass
