"""A client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pytriton.client.base import BaseModelClient, check_count
from pytriton.client.core import fork_safety
from pytriton.client.core.background import BackgroundTasks
from pytriton.client.core.cancellable_sleep import AsyncioPauses
from pytriton.client.core.chunking import infer_in_parts
from pytriton.client.core.failures import server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, options_of
from pytriton.client.core.sansio import run_async
from pytriton.client.core.session import Session
from pytriton.client.core.transports import asyncio_transport
from pytriton.client.exceptions import Failure, PyTritonClientError
from pytriton.client.retry import RetryPolicy
from pytriton.client.tls import TLSConfig
from pytriton.client.url import ServerUrls, TritonUrl
from pytriton.model_config.triton_model_config import TritonModelConfig

DEFAULT_MAX_CONNECTIONS = 128

_Self = TypeVar("_Self", bound="AsyncioModelClient")


class AsyncioModelClient(BaseModelClient):
    """Sends requests to a model from coroutines, with any number of requests in flight.

    It accepts the arguments of `BaseModelClient`, and one more. Cancelling a task that waits for a response cancels the
    request. Use it as an asynchronous context manager, or await `close` at the end.

    Args:
        max_connections: The maximum number of connections to an HTTP server; further requests wait for one. Over gRPC,
            one connection carries all requests.

    Examples:
        >>> async def infer():
        ...     async with AsyncioModelClient("grpc://localhost", "AddSub") as client:
        ...         return await client.infer_sample(a=[1, 2], b=[3, 4])
    """

    def __init__(
        self,
        url: ServerUrls,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: TLSConfig | None = None,
        retry: RetryPolicy | None = None,
        restart_timeout_s: float | None = None,
        shared_memory: bool = False,
        convert_dtypes: bool = False,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
    ) -> None:
        """Stores the arguments; connects on first use or, if it is not lazy, when entered."""
        self._max_connections = check_count("max_connections", max_connections)
        self._preparing: asyncio.Task[TritonModelConfig] | None = None
        self._waiting_for_preparing = 0
        super().__init__(
            url,
            model_name,
            model_version,
            lazy_init=lazy_init,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            model_config=model_config,
            ensure_model_is_ready=ensure_model_is_ready,
            access_token=access_token,
            tls=tls,
            retry=retry,
            restart_timeout_s=restart_timeout_s,
            shared_memory=shared_memory,
            convert_dtypes=convert_dtypes,
        )

    async def __aenter__(self: _Self) -> _Self:
        self._check_open()
        if not self._lazy_init:
            try:
                await self._prepare()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; the client can no longer be used. Requests of other tasks fail."""
        if self._closed:
            return
        self._closed = True
        if self._process is not fork_safety.process:
            return
        self._pauses.end()
        with contextlib.suppress(PyTritonClientError):
            await run_async(self._session.close(asyncio.sleep))
        for server in self._session.servers:
            await server.transport.close()
        await self._background.wait()

    async def wait_for_server(self, timeout_s: float | None) -> None:
        """Waits until the server is ready; see `ModelClient.wait_for_server`."""
        self._check_open()
        await run_async(self._session.wait_until_ready(timeout_s, model=False))

    async def wait_for_model(self, timeout_s: float | None) -> None:
        """Waits until the model is ready; see `ModelClient.wait_for_model`."""
        self._check_open()
        await run_async(self._session.wait_until_ready(timeout_s))

    async def load_model(self, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads the model; see `ModelClient.load_model`."""
        self._check_open()
        await run_async(self._session.load(config, files))

    async def unload_model(self) -> None:
        """Unloads the model; see `ModelClient.unload_model`."""
        self._check_open()
        await run_async(self._session.unload())

    @property
    def model_config(self) -> Awaitable[TritonModelConfig]:
        """The model's configuration, an awaitable: ``await client.model_config``.

        It can still be read when the client is closed, if it was fetched before.
        """
        return self._read_config()

    async def infer_sample(
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
    ) -> dict[str, Array]:
        """Sends a request with one sample; see `ModelClient.infer_sample`."""
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        await self._prepare()
        return await run_async(self._session.infer(self._session.request(inputs, named_inputs, options, False)))

    async def infer_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        progress: bool = False,
        **named_inputs: Any,
    ) -> dict[str, Array]:
        """Sends a request with a batch; see `ModelClient.infer_batch`.

        A batch with more rows than the model's ``max_batch_size`` is sent in parts, several at a time, and the
        responses are joined. `timeout_s` and ``inference_timeout_s`` are for each part.

        Args:
            inputs: The inputs, in the model's order, whose first dimension is the batch.
            parameters: Parameters for the model.
            headers: Headers of HTTP, or gRPC's metadata.
            outputs: Names of the requested outputs; all by default.
            request_id: The request's id in the server's log.
            priority: 1 is the highest.
            timeout_s: How long to wait for the response, instead of ``inference_timeout_s``.
            progress: Show a progress bar, which needs tqdm.
            named_inputs: The inputs by name, instead of `inputs`.

        Returns:
            The outputs by name, arrays whose first dimension is the batch.
        """
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s, progress)
        config = await self._prepare()
        request = self._session.request(inputs, named_inputs, options, True)
        if request.rows > config.max_batch_size or request.progress:
            return await infer_in_parts(request, config.max_batch_size, self._infer)
        return await self._infer(request)

    async def _infer(self, request: EncodedRequest) -> dict[str, Array]:
        return await run_async(self._session.infer(request))

    def _make_session(self, config: TritonModelConfig | None) -> Session:
        self._pauses, self._background = AsyncioPauses(), BackgroundTasks()
        return Session(
            self._settings, self._transport_to(), self._pauses.sleep, self._check_model, config, self._background.run
        )

    def _transport_to(self) -> Callable[[TritonUrl], Any]:
        """Returns a function that creates the transport to a server."""
        return functools.partial(
            asyncio_transport, options=self._settings.connect_options, max_connections=self._max_connections
        )

    @staticmethod
    def _check_model(config: TritonModelConfig) -> None:
        if config.decoupled:
            raise server_error(
                f"Model {config.model_name!r} is decoupled: it may send any number of responses; use "
                "AsyncioDecoupledModelClient.",
                Failure.REFUSED,
            )

    def _connect(self) -> None:
        """Does nothing; entering the client connects."""

    async def _read_config(self) -> TritonModelConfig:
        config = self._session.config
        return config if config is not None and self._closed else await self._prepare()

    async def _prepare(self) -> TritonModelConfig:
        """Prepares for the first request, once for all tasks that wait for it."""
        self._check_open()
        session = self._session
        if session.prepared and session.config is not None:
            return session.config
        task = self._preparing
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._preparing = asyncio.ensure_future(run_async(session.prepare()))
            task.add_done_callback(_retrieve)
            self._waiting_for_preparing = 0
        self._waiting_for_preparing += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting_for_preparing -= 1
            if self._waiting_for_preparing == 0:
                task.cancel()  # no caller is waiting any more


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieves the error, so that asyncio does not log it if all waiting tasks were cancelled."""
    if not task.cancelled():
        task.exception()
