"""Streams of replies to a call, blocking and for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

from pytriton.exceptions import PyTritonInferenceError
from pytriton.proxy.services.dispatcher import ReplyDispatcher
from pytriton.proxy.services.messages import InferenceCall, InferenceReply
from pytriton.proxy.services.pending_call import PendingCall
from pytriton.proxy.telemetry.propagation import RequestSpan
from pytriton.proxy.wire.error_code import ErrorCode


class NoResponseError(PyTritonInferenceError):
    """The request was cancelled because no response came in time."""


class _ReplyStreamBase:
    """The replies to one call.

    Args:
        dispatcher: The dispatcher of the service channel.
        pending: The submitted call.
        call: The request.
        timeout_s: How long to wait for each response.
        with_end: Whether a reply that only ends the stream is yielded, too, as a response without outputs.
    """

    def __init__(
        self,
        dispatcher: ReplyDispatcher,
        pending: PendingCall,
        call: InferenceCall,
        timeout_s: float | None,
        with_end: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self._pending = pending
        self._call = call
        self._timeout_s = timeout_s
        self._with_end = with_end
        self._ended = False

    def wait(self) -> InferenceReply | None:
        """Waits for the next response in this thread; None at the end."""
        if self._ended:
            return None
        return self._checked(self._dispatcher.wait(self._pending, self._deadline()))

    def cancel(self) -> None:
        """Cancels the request on the server, and drops all pending replies."""
        if not self._ended:
            self._ended = True
            self._dispatcher.cancel(self._pending)
            if self._pending.span is not None:
                self._pending.span.end()

    def request_cancellation(self) -> None:
        """Requests that the server cancel the request; the stream continues until the model ends it."""
        if not self._ended:
            self._dispatcher.request_cancellation(self._pending)

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.cancel()

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _checked(self, reply: InferenceReply | int | None) -> InferenceReply | None:
        """Returns the reply if it is a response; None if it only ends the stream."""
        if reply is None:
            self.cancel()
            message = (
                f"model {self._call.model!r} sent no response within {self._timeout_s:g} s; the request was cancelled. "
                "(If every instance of the model is waiting for this request, it would wait forever.)"
            )
            return InferenceReply(error=NoResponseError(message, ErrorCode.UNAVAILABLE))
        assert isinstance(reply, InferenceReply)
        if self._pending.span is not None:
            _note(reply, self._pending.span)
        if reply.final:
            self._ended = True
        if reply.error is not None:
            self.cancel()
        elif not reply.model and not self._with_end:
            return None
        return reply


def _note(reply: InferenceReply, span: RequestSpan) -> None:
    if reply.error is None and reply.model:
        span.responded(reply.final)
    if reply.final or reply.error is not None:
        span.end(reply.error)


class ReplyStream(_ReplyStreamBase, Iterator[InferenceReply]):
    """Iterates over the responses as they arrive, up to the final one. Dropping it cancels the request.

    A response with an error is yielded like any other, and is the last.
    """

    def __next__(self) -> InferenceReply:
        """Waits for the next response."""
        reply = self.wait()
        if reply is None:
            raise StopIteration
        return reply


class AsyncReplyStream(_ReplyStreamBase, AsyncIterator[InferenceReply]):
    """`ReplyStream` for event loops."""

    async def __anext__(self) -> InferenceReply:
        """Waits for the next response."""
        reply = await self.next()
        if reply is None:
            raise StopAsyncIteration
        return reply

    async def next(self) -> InferenceReply | None:
        """Waits for the next response; None at the end."""
        if self._ended:
            return None
        try:
            return self._checked(await self._dispatcher.wait_async(self._pending, self._deadline()))
        except BaseException:  # mainly cancellation of the task
            self.cancel()
            raise

    async def several(self) -> list[InferenceReply]:
        """Waits for the next response, and returns it with all that have arrived after it; empty at the end."""
        replies: list[InferenceReply] = []
        while (reply := await self.next()) is not None:
            replies.append(reply)
            if self._ended or not self._pending.replies:
                break
        return replies
