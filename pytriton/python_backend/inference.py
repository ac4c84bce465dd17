"""Requests to other models of the server: Business Logic Scripting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.exceptions import PyTritonError
from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.proxy.services.client import only_reply, only_reply_async
from pytriton.proxy.services.messages import InferenceCall, InferenceReply, ServiceTensor
from pytriton.proxy.services.reply_stream import AsyncReplyStream, ReplyStream
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.transport.arena import ArenaError
from pytriton.python_backend.datatypes import BF16, OPAQUE
from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.server import server_client
from pytriton.python_backend.tensor import Tensor, unchecked

if TYPE_CHECKING:
    import asyncio

_FAILURES = (PyTritonError, ArenaError)

_Result = TypeVar("_Result")

_tasks: set[asyncio.Task[Any]] = set()  # event loops only have weak references to them


def infer(call: InferenceCall) -> InferenceResponse:
    """Sends a request and waits for its only response."""
    try:
        return _response_of(only_reply(server_client().stream(call), call, "exec(decoupled=True)"))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


def ainfer(call: InferenceCall) -> asyncio.Task[InferenceResponse]:
    """Sends a request, and returns a task that waits for its only response."""

    async def wait(replies: AsyncReplyStream) -> InferenceResponse:
        return _response_of(await only_reply_async(replies, call, "async_exec(decoupled=True)"))

    return _start(call, wait, with_end=False)


def stream(call: InferenceCall) -> ResponseIterator:
    """Sends a request and returns an iterator over its responses."""
    try:
        return ResponseIterator(server_client().stream(call, with_end=True))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


def astream(call: InferenceCall) -> asyncio.Task[ResponseIterator]:
    """Sends a request, and returns a task that waits for its first response, for an iterator over all of them."""

    async def wait(replies: AsyncReplyStream) -> ResponseIterator:
        responses = ResponseIterator(replies)
        await responses.start()
        return responses

    return _start(call, wait, with_end=True)


def _start(
    call: InferenceCall, wait: Callable[[AsyncReplyStream], Awaitable[_Result]], *, with_end: bool
) -> asyncio.Task[_Result]:
    """Sends a request at once, not only when the event loop runs the task."""
    import asyncio

    loop = asyncio.get_running_loop()
    try:
        sent: AsyncReplyStream | Exception = server_client().astream(call, with_end=with_end)
    except _FAILURES as error:
        sent = error
    task = loop.create_task(_finish(sent, wait))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def _finish(
    sent: AsyncReplyStream | Exception, wait: Callable[[AsyncReplyStream], Awaitable[_Result]]
) -> _Result:
    try:
        if isinstance(sent, Exception):
            raise sent
        return await wait(sent)
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


class ResponseIterator(Iterator[InferenceResponse], AsyncIterator[InferenceResponse]):
    """Iterates over responses as they arrive, with ``for`` or ``async for``. Dropping it cancels the request.

    It keeps the responses: iterating over it again yields them again. If the model sends its final flag without a
    response, the last one is an `InferenceResponse` without tensors.
    """

    def __init__(self, replies: ReplyStream | AsyncReplyStream) -> None:
        self._replies = replies
        self._responses: list[InferenceResponse] = []
        self._position = 0
        self._is_exhausted = False

    def __iter__(self) -> ResponseIterator:
        if self._is_exhausted:
            self._position = 0
            self._is_exhausted = False
        return self

    def __next__(self) -> InferenceResponse:
        """Waits for the next response."""
        if self._position == len(self._responses):
            self._keep(self._wait())
        response = self._take()
        if response is None:
            raise StopIteration
        return response

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        """Waits for the next response without blocking the event loop."""
        if self._position == len(self._responses):
            await self.start()
        response = self._take()
        if response is None:
            raise StopAsyncIteration
        return response

    async def start(self) -> None:
        """Waits for one more response, without consuming it."""
        if isinstance(self._replies, AsyncReplyStream):
            try:
                self._keep(await self._replies.next())
            except _FAILURES as error:
                raise TritonModelException(str(error)) from error
        else:
            import asyncio

            self._keep(await asyncio.get_running_loop().run_in_executor(None, self._wait))

    def cancel(self) -> None:
        """Requests cancellation; the iterator continues until the model has ended the request."""
        self._replies.request_cancellation()

    def _wait(self) -> InferenceReply | None:
        try:
            return self._replies.wait()
        except _FAILURES as error:
            raise TritonModelException(str(error)) from error

    def _keep(self, reply: InferenceReply | None) -> None:
        if reply is not None:
            self._responses.append(_response_of(reply))

    def _take(self) -> InferenceResponse | None:
        if self._position == len(self._responses):
            self._is_exhausted = True
            return None
        self._position += 1
        return self._responses[self._position - 1]


def _response_of(reply: InferenceReply) -> InferenceResponse:
    if reply.error is not None:
        message, code = str(reply.error), getattr(reply.error, "code", TritonError.INTERNAL)
        return InferenceResponse(error=TritonError(message, int(code)))
    tensors = [_tensor_of(name, tensor) for name, tensor in reply.tensors.items()]
    return InferenceResponse(tensors, parameters=reply.parameters or None)


def _tensor_of(name: str, tensor: ServiceTensor) -> Tensor:
    if tensor.datatype == BF16 and DTYPE_BY_CODE[BF16] is OPAQUE and not isinstance(tensor.data, GpuTensor):
        return unchecked(name, tensor.data.view(OPAQUE).reshape(tensor.shape))
    return unchecked(name, tensor.array())
