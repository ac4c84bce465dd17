"""Responses to what a worker asks of a model, as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

from pytriton.exceptions import PyTritonInferenceError
from pytriton.proxy.services.dispatcher import ReplyDispatcher
from pytriton.proxy.services.messages import InferenceCall, InferenceReply
from pytriton.proxy.services.pending_call import PendingCall
from pytriton.proxy.wire.error_code import ErrorCode


class _ReplyStreamBase:
    """Responses to one request."""

    def __init__(
        self, dispatcher: ReplyDispatcher, pending: PendingCall, call: InferenceCall, timeout_s: float | None
    ) -> None:
        self._dispatcher = dispatcher
        self._pending = pending
        self._call = call
        self._timeout_s = timeout_s
        self._ended = False

    def cancel(self) -> None:
        """Has the server stop; what has come, and what comes until it has stopped, is dropped."""
        if not self._ended:
            self._ended = True
            self._dispatcher.cancel(self._pending)

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.cancel()

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _checked(self, reply: InferenceReply | int | None) -> InferenceReply | None:
        """The response that a reply is; None where it is the end alone."""
        if reply is None:
            self.cancel()
            message = (
                f"model {self._call.model!r} gave no response within {self._timeout_s:g} s; the request was cancelled. "
                "(It would wait for ever if all instances of the model were waiting for this very request.)"
            )
            return InferenceReply(error=PyTritonInferenceError(message, ErrorCode.UNAVAILABLE))
        assert isinstance(reply, InferenceReply)
        if reply.final:
            self._ended = True
        if reply.error is not None:
            self.cancel()
        elif not reply.model:
            return None
        return reply


class ReplyStream(_ReplyStreamBase, Iterator[InferenceReply]):
    """Responses to one request, as they come. It ends behind the final one; dropping it cancels the rest.

    One with an error is given like any other, and is the last.
    """

    def __next__(self) -> InferenceReply:
        """Waits for the next response."""
        if self._ended:
            raise StopIteration
        reply = self._checked(self._dispatcher.wait(self._pending, self._deadline()))
        if reply is None:
            raise StopIteration
        return reply


class AsyncReplyStream(_ReplyStreamBase, AsyncIterator[InferenceReply]):
    """The same in an event loop."""

    async def __anext__(self) -> InferenceReply:
        """Waits for the next response."""
        import asyncio

        if self._ended:
            raise StopAsyncIteration
        try:
            reply = self._checked(await self._dispatcher.wait_async(self._pending, self._deadline()))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if reply is None:
            raise StopAsyncIteration
        return reply
