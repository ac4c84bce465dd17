"""Clients in the process that runs the server: requests go through shared memory, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from pytriton.client.core import fork_safety
from pytriton.client.core.deadlines import check_timeout
from pytriton.client.core.failures import server_error, server_failure
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, Options, check_rows, make_request, options_of
from pytriton.client.core.settings import check_model_name, version_of
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.in_process_server import ClosedServer, Server
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.client import ServerClient, only_reply, only_reply_async
from pytriton.proxy.services.messages import InferenceCall, InferenceReply
from pytriton.proxy.services.reply_stream import AsyncReplyStream, NoResponseError, ReplyStream
from pytriton.proxy.transport.arena import ArenaError

_SENDING_ERRORS = (PyTritonInvalidOperationError, PyTritonBadParameterError, ArenaError)


class _Prepared(NamedTuple):
    call: InferenceCall
    single: bool
    timeout_s: float


class _InProcessClientBase:
    """The common base of both clients: the model, and the translation of requests and replies."""

    def __init__(
        self,
        server: Server,
        model_name: str,
        model_version: int | None,
        inference_timeout_s: float,
        convert_dtypes: bool,
    ) -> None:
        self._server: Server = server
        self._name = check_model_name(model_name)
        self._version = int(version) if (version := version_of(model_version)) else None
        self._timeout_s = check_timeout("inference_timeout_s", inference_timeout_s)
        self._convert = convert_dtypes
        self._generation = server.generation
        self._config = server.model_config(model_name, model_version)

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration."""
        generation = self._server.generation
        if generation != self._generation:
            self._config = self._server.model_config(self._name, self._version)
            self._generation = generation
        return self._config

    @property
    def has_current_config(self) -> bool:
        """Whether `model_config` is at hand: otherwise, it asks the server."""
        return self._server.generation == self._generation

    def __reduce__(self) -> NoReturn:
        fork_safety.refuse_copy(self)

    def call(self, arrays: Mapping[str, Array]) -> InferenceCall:
        """Returns a request with inputs that have been checked, with the batch dimension if the model batches."""
        return InferenceCall(self._name, arrays, -1 if self._version is None else self._version)

    def _prepare(self, batch: bool, inputs: Sequence[Any], named: dict[str, Any], options: Options | None) -> _Prepared:
        config = self.model_config
        request = make_request(config, inputs, named, options, batch=batch, convert=self._convert)
        check_rows(config, request)
        timeout_s = self._timeout_s if request.timeout_s is None else request.timeout_s
        return _Prepared(self._call(request), request.single, timeout_s)

    def _call(self, request: EncodedRequest) -> InferenceCall:
        settings = request.settings
        call = self.call({spec.name: array for spec, array in request.arrays})
        call.outputs = request.outputs
        if settings:
            call.request_id = settings.get("request_id", "")
            call.priority = settings.get("priority", 0)
            call.timeout_us = settings.get("timeout", 0)
            call.parameters = settings.get("parameters", {})
        return call

    def _close(self) -> None:
        self._server = ClosedServer(self._name)

    def _services(self, timeout_s: float) -> ServerClient:
        try:
            return self._server.services(timeout_s)
        except PyTritonInvalidOperationError as error:
            raise server_error(str(error), Failure.UNREACHABLE) from None


class InProcessClient(_InProcessClientBase):
    """Sends requests to a model of the server that this process runs. Created by `Triton.client`.

    Requests and responses go through shared memory; Triton queues, batches, caches and counts them like those of any
    other client. Any number of threads may use a client at the same time. It need not be closed, but may be used as a
    context manager like other clients.
    """

    def __enter__(self) -> InProcessClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the client: later requests are refused, those in flight continue."""
        self._close()

    def infer_sample(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> dict[str, Array]:
        """Sends a request with one sample.

        Args:
            inputs: Inputs in the model's order: arrays, or values that NumPy converts to arrays.
            parameters: For the model; strings, numbers and booleans.
            outputs: Names of the requested outputs; None for all.
            request_id: Name of the request in the server's logs and in the model.
            priority: 1 is the highest; 0 is the model's default.
            timeout_s: How long the response may take, in seconds.
            named_inputs: Inputs by name, instead of ``inputs``.

        Returns:
            The outputs by name, without the batch dimension. They are views of shared memory, which is released when
            the last of them is deleted.

        Raises:
            PyTritonClientInputError: The inputs do not fit the model; nothing was sent.
            PyTritonClientTimeoutError: There was no response in time; the request was cancelled.
            PyTritonClientInferenceServerError: The server or the model responded with an error, or the server has
                exited.
        """
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._infer(self._prepare(False, inputs, named_inputs, options))

    def infer_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> dict[str, Array]:
        """Sends a request with a batch; arguments are those of `infer_sample`, with the batch dimension first.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model does not batch.
            PyTritonClientError: As for `infer_sample`.
        """
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._infer(self._prepare(True, inputs, named_inputs, options))

    def stream_sample(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> Iterator[dict[str, Array]]:
        """Sends a request with one sample, and iterates over the responses as they arrive.

        Dropping the iterator cancels the request.

        Args:
            inputs: As in `infer_sample`, and so are the rest.
            parameters: For the model.
            outputs: Names of the requested outputs.
            request_id: Name of the request.
            priority: 1 is the highest.
            timeout_s: How long each response may take, in seconds.
            named_inputs: Inputs by name.

        Raises:
            PyTritonClientError: As `infer_sample` does; errors of the model come from the iterator.
        """
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._stream(self._prepare(False, inputs, named_inputs, options))

    def stream_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> Iterator[dict[str, Array]]:
        """Sends a request with a batch, and iterates over the responses; see `stream_sample`."""
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._stream(self._prepare(True, inputs, named_inputs, options))

    def _infer(self, prepared: _Prepared) -> dict[str, Array]:
        stream = self._send(prepared)
        try:
            reply = only_reply(stream, prepared.call)
        except PyTritonInvalidOperationError:
            raise _lost(prepared.call) from None
        return _outputs(_checked(reply), prepared.single)

    def _stream(self, prepared: _Prepared) -> Iterator[dict[str, Array]]:
        return _responses(self._send(prepared), prepared)

    def _send(self, prepared: _Prepared) -> ReplyStream:
        deadline = time.monotonic() + prepared.timeout_s
        while True:
            services = self._services(max(0.0, deadline - time.monotonic()))
            try:
                return services.stream(prepared.call, prepared.timeout_s)
            except _SENDING_ERRORS as error:
                translated = _translated(error, services)
                if translated is not None:
                    raise translated from None


class AsyncioInProcessClient(_InProcessClientBase):
    """`InProcessClient` for asyncio. Created by `Triton.aclient`; usable in any event loop of the process."""

    async def __aenter__(self) -> AsyncioInProcessClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the use of the client, as `InProcessClient.close`."""
        self._close()

    async def infer_sample(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> dict[str, Array]:
        """Sends a request with one sample, as `InProcessClient.infer_sample`. Cancelling the task cancels it."""
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return await self._infer(self._prepare(False, inputs, named_inputs, options))

    async def infer_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> dict[str, Array]:
        """Sends a request with a batch, as `InProcessClient.infer_batch`."""
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return await self._infer(self._prepare(True, inputs, named_inputs, options))

    def stream_sample(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> AsyncIterator[dict[str, Array]]:
        """Sends a request with one sample, and iterates over the responses, as `InProcessClient.stream_sample`."""
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._stream(self._prepare(False, inputs, named_inputs, options))

    def stream_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> AsyncIterator[dict[str, Array]]:
        """Sends a request with a batch, and iterates over the responses, as `InProcessClient.stream_batch`."""
        options = _options(parameters, outputs, request_id, priority, timeout_s)
        return self._stream(self._prepare(True, inputs, named_inputs, options))

    async def infer_call(self, call: InferenceCall, timeout_s: float) -> InferenceReply:
        """Sends a request whose inputs have been checked, and returns the reply unchanged.

        Args:
            call: The request, made by `call`.
            timeout_s: How long the response may take, in seconds.

        Raises:
            PyTritonClientError: As for `infer_sample`.
        """
        stream = await self._send(call, timeout_s)
        try:
            reply = await only_reply_async(stream, call)
        except PyTritonInvalidOperationError:
            raise _lost(call) from None
        return _checked(reply)

    async def stream_call(self, call: InferenceCall, timeout_s: float) -> AsyncGenerator[list[InferenceReply], None]:
        """Sends a request as `infer_call` does, and yields the replies: each time all that have arrived."""
        stream = await self._send(call, timeout_s)
        try:
            while replies := await stream.several():
                if replies[-1].error is not None:
                    if replies[:-1]:
                        yield replies[:-1]
                    raise _failure(replies[-1].error) from None
                yield replies
        except PyTritonInvalidOperationError:
            raise _lost(call) from None
        finally:
            stream.cancel()

    async def _infer(self, prepared: _Prepared) -> dict[str, Array]:
        return _outputs(await self.infer_call(prepared.call, prepared.timeout_s), prepared.single)

    async def _stream(self, prepared: _Prepared) -> AsyncGenerator[dict[str, Array], None]:
        stream = self.stream_call(prepared.call, prepared.timeout_s)
        try:
            async for replies in stream:
                for reply in replies:
                    yield _outputs(reply, prepared.single)
        finally:
            await stream.aclose()

    async def _send(self, call: InferenceCall, timeout_s: float) -> AsyncReplyStream:
        """Sends a request, which does not block; waits in another thread for a server that is being restarted."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                services = self._server.services(0.0)
            except PyTritonInvalidOperationError:
                services = await asyncio.to_thread(self._services, max(0.0, deadline - time.monotonic()))
            try:
                return services.astream(call, timeout_s)
            except _SENDING_ERRORS as error:
                translated = _translated(error, services)
                if translated is not None:
                    raise translated from None


def _translated(error: Exception, services: ServerClient) -> PyTritonClientError | None:
    """Translates an error of sending; returns None if the server has just exited: another channel is needed."""
    if isinstance(error, PyTritonBadParameterError):
        return PyTritonClientValueError(str(error))
    if isinstance(error, ArenaError):
        return server_error(f"{error}.", Failure.BUSY)
    return None if services.closed else server_error(f"{error}.", Failure.UNREACHABLE)  # not closed: in a fork


def _options(
    parameters: Mapping[str, Any] | None,
    outputs: Sequence[str] | None,
    request_id: str | None,
    priority: int | None,
    timeout_s: float | None,
) -> Options | None:
    return options_of(parameters, None, outputs, request_id, priority, timeout_s)


def _responses(stream: ReplyStream, prepared: _Prepared) -> Iterator[dict[str, Array]]:
    try:
        for reply in stream:
            yield _outputs(_checked(reply), prepared.single)
    except PyTritonInvalidOperationError:
        raise _lost(prepared.call) from None
    finally:
        stream.cancel()


def _checked(reply: InferenceReply) -> InferenceReply:
    if reply.error is not None:
        raise _failure(reply.error) from None
    return reply


def _outputs(reply: InferenceReply, single: bool) -> dict[str, Array]:
    outputs = reply.outputs
    if not single:
        return outputs
    return {name: array[0] if array.shape[:1] == (1,) else array for name, array in outputs.items()}


def _failure(error: PyTritonInferenceError) -> PyTritonClientError:
    if isinstance(error, NoResponseError):
        return PyTritonClientTimeoutError(str(error))
    # The methods for models that call other models have different names.
    message = str(error).replace("use stream() or astream()", "use stream_sample or stream_batch")
    return server_failure("The server", message, error.code)


def _lost(call: InferenceCall) -> PyTritonClientError:
    return server_error(f"The server exited before model {call.model!r} responded.", Failure.LOST)
