"""The models that the gateway serves: those of the server in its process."""

from __future__ import annotations

import asyncio
import http
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from pytriton.client.core.inputs import Array
from pytriton.client.exceptions import PyTritonClientError
from pytriton.client.in_process import AsyncioInProcessClient
from pytriton.gateway.errors import RequestError, translated
from pytriton.model_config.triton_model_config import TritonModelConfig

_MAX_NAME = 256


class Server(Protocol):
    """The server that this process runs: a `Triton`."""

    async def aclient(self, model_name: str, model_version: int | None = None) -> AsyncioInProcessClient:
        """Returns a client of a model that is ready."""

    def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""

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

    async def infer(self, arrays: Mapping[str, Array], request_id: str) -> dict[str, Array]:
        """Sends a request with inputs that fit the model, and returns the outputs.

        Raises:
            RequestError: It failed.
        """
        try:
            return await self._client.infer_arrays(arrays, request_id=request_id, timeout_s=self._timeout_s)
        except PyTritonClientError as error:
            raise translated(error) from error

    async def stream(self, arrays: Mapping[str, Array], request_id: str) -> AsyncIterator[dict[str, Array]]:
        """Sends a request with inputs that fit the model, and yields the outputs of each response.

        Raises:
            RequestError: It failed.
        """
        stream = self._client.stream_arrays(arrays, request_id=request_id, timeout_s=self._timeout_s)
        try:
            async for outputs in stream:
                yield outputs
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
        if version is not None and not version.isdecimal():
            raise RequestError(http.HTTPStatus.NOT_FOUND, f"The version is {version[:20]!r}: give a number.")
        number = None if version is None else int(version[:18])
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
