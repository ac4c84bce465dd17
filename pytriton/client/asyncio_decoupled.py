"""A client for asyncio of models that respond with streams."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.core import fork_safety
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, Options, options_of
from pytriton.client.core.session import Session
from pytriton.client.core.streams import Stream, check_settings, check_streams, open_stream, stream_transport
from pytriton.client.url import TritonUrl
from pytriton.model_config.triton_model_config import TritonModelConfig


class AsyncioDecoupledModelClient(AsyncioModelClient):
    """Sends requests to a decoupled model from coroutines: one that sends any number of responses.

    Requires gRPC. It accepts the arguments of `AsyncioModelClient`. Any number of streams may be open at once.

    Raises:
        PyTritonClientValueError: The URL is not one of gRPC.
        PyTritonClientInputError: The model is not decoupled.

    Examples:
        >>> async def infer():
        ...     async with AsyncioDecoupledModelClient("grpc://localhost", "Count") as client:
        ...         async for response in client.infer_sample(np.int32([3])):
        ...             print(response["number"])
    """

    def infer_sample(  # type: ignore[override]
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> AsyncResponses:
        """Sends a request with one sample.

        Arguments and errors are those of `ModelClient.infer_sample`; errors are raised when the first response is
        awaited. `timeout_s` and ``inference_timeout_s`` are for each response.

        Returns:
            An asynchronous iterator over the responses: the outputs by name, arrays without the batch dimension.
            Leaving the loop early cancels the request.
        """
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return self._responses(inputs, named_inputs, options, batch=False)

    def infer_batch(  # type: ignore[override]
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> AsyncResponses:
        """Sends a request with a batch; see `infer_sample`. The arrays' first dimension is the batch."""
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return self._responses(inputs, named_inputs, options, batch=True)

    def _responses(
        self, inputs: Sequence[Any], named_inputs: dict[str, Any], options: Options | None, batch: bool
    ) -> AsyncResponses:
        self._check_open()
        return AsyncResponses(self, inputs, named_inputs, options, batch)

    async def _streamed(
        self, inputs: Sequence[Any], named_inputs: dict[str, Any], options: Options | None, batch: bool
    ) -> EncodedRequest:
        await self._prepare()
        return self._checked_rows(self._session.request(inputs, named_inputs, options, batch))

    def _make_session(self, config: TritonModelConfig | None) -> Session:
        check_settings(self._settings)
        return super()._make_session(config)

    def _transport_to(self) -> Callable[[TritonUrl], Any]:
        return functools.partial(stream_transport, options=self._settings.connect_options)

    @staticmethod
    def _check_model(config: TritonModelConfig) -> None:
        check_streams(config, "AsyncioModelClient")


class AsyncResponses(AsyncGenerator[dict[str, Array], None]):
    """The responses to one request, as an asynchronous generator; sent when the first one is awaited.

    Args:
        client: The client.
        arguments: The arguments of `infer_sample` or `infer_batch`.
    """

    def __init__(self, client: AsyncioDecoupledModelClient, *arguments: Any) -> None:
        """Sends nothing yet."""
        self._client = client
        self._arguments = arguments
        self._request: EncodedRequest | None = None
        self._stream: Stream | None = None
        self._process = fork_safety.process
        self._ended = False

    def __aiter__(self) -> AsyncResponses:
        return self

    async def asend(self, value: None = None) -> dict[str, Array]:
        """Returns the next response, as `anext` does; nothing can be sent to it."""
        if self._ended:
            raise StopAsyncIteration
        if self._process is not fork_safety.process:
            raise fork_safety.error("The stream")
        session = self._client._session
        try:
            if self._request is None or self._stream is None:
                self._request = await self._client._streamed(*self._arguments)
                self._stream, result = await open_stream(session, self._request)
            else:
                result = await self._stream.receive()
        except BaseException:
            self.cancel()
            raise
        if result is None:
            self._ended = True
            raise StopAsyncIteration
        return session.response(self._stream.server, result, self._request)

    async def athrow(self, error: Any, value: Any = None, traceback: Any = None) -> dict[str, Array]:
        """Cancels the request, and raises an error."""
        self.cancel()
        return await super().athrow(error, value, traceback)

    async def aclose(self) -> None:
        """Cancels the request; the same as leaving the loop early."""
        self.cancel()

    def cancel(self) -> None:
        """Cancels the request."""
        if not self._ended and self._stream is not None and self._process is fork_safety.process:
            self._stream.leave()
        self._ended = True

    def __del__(self) -> None:
        self.cancel()
