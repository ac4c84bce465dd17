"""Requests to other models of the server: Business Logic Scripting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from pytriton.exceptions import PyTritonError
from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.proxy.services.messages import InferenceCall, InferenceReply, ServiceTensor
from pytriton.proxy.services.reply_stream import ReplyStream
from pytriton.proxy.transport.arena import ArenaError
from pytriton.python_backend.datatypes import BF16, OPAQUE
from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.server import server_client
from pytriton.python_backend.tensor import Tensor, unchecked

_FAILURES = (PyTritonError, ArenaError)


def infer(call: InferenceCall) -> InferenceResponse:
    """Sends a request and waits for its only response."""
    try:
        return _response_of(server_client().infer(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


async def ainfer(call: InferenceCall) -> InferenceResponse:
    """`infer` for event loops."""
    try:
        return _response_of(await server_client().ainfer(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


def stream(call: InferenceCall) -> ResponseIterator:
    """Sends a request and returns an iterator over its responses."""
    try:
        return ResponseIterator(server_client().stream(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


class ResponseIterator(Iterator[InferenceResponse], AsyncIterator[InferenceResponse]):
    """Iterates over responses as they arrive, with ``for`` or ``async for``. Dropping it cancels the request."""

    def __init__(self, replies: ReplyStream) -> None:
        self._replies = replies

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        """Waits for the next response."""
        try:
            return _response_of(next(self._replies))
        except _FAILURES as error:
            raise TritonModelException(str(error)) from error

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        """Waits for the next response, while the event loop goes on."""
        import asyncio

        response = await asyncio.get_running_loop().run_in_executor(None, next, self, None)
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        """Cancels the request, and drops all responses that were not taken yet."""
        self._replies.cancel()


def _response_of(reply: InferenceReply) -> InferenceResponse:
    if reply.error is not None:
        message, code = str(reply.error), getattr(reply.error, "code", TritonError.INTERNAL)
        return InferenceResponse(error=TritonError(message, int(code)))
    tensors = [_tensor_of(name, tensor) for name, tensor in reply.tensors.items()]
    return InferenceResponse(tensors, parameters=reply.parameters or None)


def _tensor_of(name: str, tensor: ServiceTensor) -> Tensor:
    if tensor.datatype == BF16 and DTYPE_BY_CODE[BF16] is OPAQUE:
        return unchecked(name, tensor.data.view(OPAQUE).reshape(tensor.shape))
    return unchecked(name, tensor.array())
