"""The models that the gateway serves: those of the server in its process."""

from __future__ import annotations

import asyncio
import http
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from pytriton.client.core.inputs import Array
from pytriton.client.exceptions import PyTritonClientError
from pytriton.client.in_process import AsyncioInProcessClient
from pytriton.gateway.errors import RequestError, translated
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall, InferenceReply

_MAX_NAME = 256
_MAX_DIGITS = 18


class Server(Protocol):
    """The server that this process runs: a `Triton`."""

    async def aclient(self, model_name: str, model_version: int | None = None) -> AsyncioInProcessClient:
        """Returns a client of a model that is ready."""

    def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""

    def model_configuration(self, model_name: str, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns a model's configuration as the server reports it."""

    def model_statistics(self, model_name: str | None = None, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all."""

    def model_description(self, model_name: str) -> str:
        """Returns the docstring of a bound function."""

    def model_instances(self, model_name: str) -> tuple[int, int] | None:
        """Returns the number of instances of a bound model, and how often their processes were restarted."""

    @property
    def server_restarts(self) -> int:
        """How often the server was restarted."""

    @property
    def server_version(self) -> str | None:
        """The version of the server."""

    def is_connected(self) -> bool:
        """Returns whether the server accepts requests."""


class Model:
    """One model, or one version of it.

    Args:
        client: Its client.
        timeout_s: How long a response may take.
    """

    def __init__(self, client: AsyncioInProcessClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    @property
    def config(self) -> TritonModelConfig:
        """Its configuration.

        Raises:
            RequestError: It is not ready.
        """
        try:
            return self._client.model_config
        except PyTritonClientError as error:
            raise translated(error) from error

    def call(self, arrays: Mapping[str, Array], request_id: str) -> InferenceCall:
        """Returns a request with inputs that fit the model."""
        call = self._client.call(arrays)
        call.request_id = request_id
        return call

    async def infer(self, call: InferenceCall) -> InferenceReply:
        """Sends a request, and returns the response.

        Raises:
            RequestError: It failed.
        """
        try:
            return await self._client.infer_call(call, self._timeout_s)
        except PyTritonClientError as error:
            raise translated(error) from error

    async def stream(self, call: InferenceCall) -> AsyncGenerator[InferenceReply, None]:
        """Sends a request, and yields the responses.

        Raises:
            RequestError: It failed.
        """
        stream = self._client.stream_call(call, self._timeout_s)
        try:
            async for reply in stream:
                yield reply
        except PyTritonClientError as error:
            raise translated(error) from error
        finally:
            await stream.aclose()


class Models:
    """Looks up models of the server that this process runs.

    Args:
        triton: The server.
        timeout_s: How long a response may take.
    """

    def __init__(self, triton: Server, timeout_s: float) -> None:
        self._triton = triton
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, int | None], Model] = {}

    async def find(self, name: str, version: str | None = None) -> Model:
        """Returns a model that is ready.

        Raises:
            RequestError: There is none of that name and version.
        """
        number = _number(version)
        known = self._known.get((name, number))
        if known is not None:
            return known
        if not name or len(name) > _MAX_NAME:
            raise RequestError(http.HTTPStatus.NOT_FOUND, "No model has a name that long.")
        try:
            client = await self._triton.aclient(name, number)
        except PyTritonClientError as error:
            raise translated(error) from error
        return self._known.setdefault((name, number), Model(client, self._timeout_s))

    async def names(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""
        return await asyncio.to_thread(self._triton.ready_models)

    async def is_ready(self) -> bool:
        """Returns whether the server accepts requests."""
        return await asyncio.to_thread(self._triton.is_connected)

    async def config(self, name: str, version: str | None) -> Mapping[str, Any]:
        """Returns the configuration of a model as the server reports it.

        Raises:
            RequestError: The model is not ready.
        """
        try:
            return await asyncio.to_thread(self._triton.model_configuration, name, _number(version))
        except PyTritonClientError as error:
            raise translated(error) from error

    async def statistics(self, name: str | None, version: str | None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all.

        Raises:
            RequestError: The model is not ready.
        """
        try:
            return await asyncio.to_thread(self._triton.model_statistics, name, _number(version))
        except PyTritonClientError as error:
            raise translated(error) from error

    def description(self, name: str) -> str:
        """Returns the docstring of the function that a model is bound to."""
        return self._triton.model_description(name)

    def instances(self, name: str) -> tuple[int | None, int | None]:
        """Returns the number of instances of a model, and how often they were restarted; None if it is not bound."""
        return self._triton.model_instances(name) or (None, None)

    @property
    def server_restarts(self) -> int:
        """How often the server was restarted."""
        return self._triton.server_restarts

    @property
    def server_version(self) -> str:
        """The version of the server."""
        return self._triton.server_version or ""


def _number(version: str | None) -> int | None:
    if version is None:
        return None
    if not (version.isascii() and version.isdecimal() and len(version) <= _MAX_DIGITS):
        raise RequestError(http.HTTPStatus.NOT_FOUND, f"The version is {version[:20]!r}: give a number.")
    return int(version)
