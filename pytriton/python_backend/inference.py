"""Has other models of the server infer: Business Logic Scripting."""

from __future__ import annotations

import asyncio
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
    """Asks, and waits for the one response."""
    try:
        return _response_of(server_client().infer(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


async def ainfer(call: InferenceCall) -> InferenceResponse:
    """The same in an event loop."""
    try:
        return _response_of(await server_client().ainfer(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


def stream(call: InferenceCall) -> ResponseIterator:
    """Asks, and gives responses as they come."""
    try:
        return ResponseIterator(server_client().stream(call))
    except _FAILURES as error:
        raise TritonModelException(str(error)) from error


class ResponseIterator(Iterator[InferenceResponse], AsyncIterator[InferenceResponse]):
    """Responses to one request, as they come; for ``for`` and for ``async for``. Dropping it cancels the rest."""

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
        response = await asyncio.get_running_loop().run_in_executor(None, next, self, None)
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        """Has the model stop; what has come, and what comes until it has stopped, is dropped."""
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
