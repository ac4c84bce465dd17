"""The server of the gateway's process, to which requests are sent through shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from pytriton.client.core.failures import server_error
from pytriton.client.core.inputs import Array
from pytriton.client.exceptions import Failure
from pytriton.client.in_process import AsyncioInProcessClient
from pytriton.gateway.models import Client
from pytriton.gateway.offload import has_many_texts
from pytriton.gateway.remote import RemoteUpstream
from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall, ServiceTensor
from pytriton.proxy.tensors.bytes_tensor import encode_elements

_LOOPBACK = "127.0.0.1"
_EVERY_ADDRESS = (None, "", "0.0.0.0")


class Report(Protocol):
    """The server's report; see `pytriton.server_report.ServerReport`."""

    @property
    def version(self) -> str | None:
        """Triton's version."""

    @property
    def restarts(self) -> int:
        """The number of restarts of the server."""

    def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""

    def configuration(self, model_name: str, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns a model's configuration."""

    def statistics(self, model_name: str | None = None, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all models."""

    def description(self, model_name: str) -> str:
        """Returns the docstring of a bound function."""

    def instances(self, model_name: str) -> tuple[int, int] | None:
        """Returns the number of instances of a bound model, and how often they were restarted."""


class Triton(Protocol):
    """The server of this process: a `pytriton.triton.Triton`."""

    @property
    def models(self) -> Sequence[Any]:
        """The bound models."""

    @property
    def report(self) -> Report:
        """The server's report."""

    async def aclient(self, model_name: str, model_version: int | None = None) -> AsyncioInProcessClient:
        """Returns a client of a model that is ready."""

    def run_behind_gateway(self) -> None:
        """Starts the server if it is not running."""

    def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready."""


class LocalClient:
    """Sends requests to one model; see `pytriton.gateway.models.Client`.

    Args:
        client: The client that sends them.
    """

    def __init__(self, client: AsyncioInProcessClient) -> None:
        self._client = client
        self.infer_call = client.infer_call
        self.stream_call = client.stream_call

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration."""
        return self._client.model_config

    async def refresh(self) -> None:
        """Fetches the model's configuration if it may have changed: in a thread, since the server may hang."""
        if not self._client.has_current_config:
            await asyncio.to_thread(getattr, self._client, "model_config")

    def call(self, arrays: Mapping[str, Array]) -> InferenceCall:
        """Returns a request; large arrays of text are encoded here, possibly in a thread, not when it is sent."""
        call = self._client.call(arrays)
        if any(map(has_many_texts, arrays.values())):
            call.inputs = {name: _encoded(array) for name, array in arrays.items()}
        return call


def _encoded(array: Array) -> Array | ServiceTensor:
    if not has_many_texts(array):
        return array
    return ServiceTensor(BYTES_CODE, array.shape, np.frombuffer(encode_elements(array.ravel().tolist()), np.uint8))


class LocalUpstream:
    """The server that this process runs; see `pytriton.gateway.models.Upstream`.

    Args:
        triton: The server.
        timeout_s: How long a response may take.
    """

    def __init__(self, triton: Triton, timeout_s: float) -> None:
        self._triton = triton
        self._report = triton.report
        self._timeout_s = timeout_s
        self._health = ThreadPoolExecutor(1, "pytriton-gateway-health")  # of its own, so that nothing else delays it
        self._over_grpc: RemoteUpstream | None = None  # for a server without bound models

    async def start(self) -> None:
        """Starts the server if it is not running."""
        await asyncio.to_thread(self._triton.run_behind_gateway)

    async def client(self, name: str, version: int | None) -> Client:
        """Returns a client of a model that is ready."""
        if not self._triton.models:
            return await self._grpc().client(name, version)
        return LocalClient(await self._triton.aclient(name, version))

    async def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""
        return await asyncio.to_thread(self._report.ready_models)

    async def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready."""
        return await asyncio.get_running_loop().run_in_executor(self._health, self._triton.is_ready)

    async def configuration(self, name: str, version: int | None) -> Mapping[str, Any]:
        """Returns a model's configuration as Triton reports it."""
        return await asyncio.to_thread(self._report.configuration, name, version)

    async def statistics(self, name: str | None, version: int | None) -> Mapping[str, Any]:
        """Returns Triton's statistics of a model, or of all models."""
        return await asyncio.to_thread(self._report.statistics, name, version)

    async def version(self) -> str:
        """Returns Triton's version."""
        return self._report.version or ""

    def description(self, name: str) -> str:
        """Returns the docstring of the function that a model is bound to."""
        return self._report.description(name)

    def instances(self, name: str) -> tuple[int | None, int | None]:
        """Returns the number of a model's instances, and how often they were restarted; None if it is not bound."""
        return self._report.instances(name) or (None, None)

    def restarts(self) -> int | None:
        """Returns how often the server was restarted."""
        return self._report.restarts

    async def close(self) -> None:
        """Closes connections; the server keeps running."""
        if self._over_grpc is not None:
            await self._over_grpc.close()

    def _grpc(self) -> RemoteUpstream:
        """Returns the upstream for models of a repository: the channel in shared memory belongs to bound models.

        Raises:
            PyTritonClientError: The server's gRPC endpoint cannot be used.
        """
        if self._over_grpc is None:
            config = getattr(self._triton, "config", None)  # a server elsewhere has none
            if config is None or config.allow_grpc is False or config.grpc_use_ssl:
                raise server_error(
                    "No model is bound, and without one the gateway needs the server's gRPC: bind a model, or let "
                    "TritonConfig allow gRPC without TLS.",
                    Failure.UNREACHABLE,
                )
            host = _LOOPBACK if config.grpc_address in _EVERY_ADDRESS else config.grpc_address
            token = self._triton.get_access_token()  # type: ignore[attr-defined]
            self._over_grpc = RemoteUpstream([f"{host}:{config.grpc_port}"], self._timeout_s, token)
        return self._over_grpc
