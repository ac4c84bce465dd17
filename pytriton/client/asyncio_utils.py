"""Functions for tritonclient's own asyncio clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

from pytriton.client.core.session import read_config
from pytriton.client.core.settings import LATEST_MODEL_VERSION, version_of
from pytriton.client.exceptions import (
    PyTritonClientModelNotReadyError,
    PyTritonClientTimeoutError,
)
from pytriton.client.exceptions import PyTritonClientModelUnavailableError as PyTritonClientModelUnavailableError
from pytriton.client.utils import ModelState, is_over_grpc, state_in
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    import tritonclient.grpc.aio
    import tritonclient.http.aio

    AsyncioClient: TypeAlias = tritonclient.grpc.aio.InferenceServerClient | tritonclient.http.aio.InferenceServerClient

__all__ = [
    "LATEST_MODEL_VERSION",
    "asyncio_get_model_config",
    "asyncio_get_model_state",
    "asyncio_wait_for_model_ready",
    "asyncio_wait_for_model_status_loaded",
    "asyncio_wait_for_server_ready",
]

_TIMEOUT_S = 60.0
_PAUSE_S = 0.05


async def asyncio_get_model_state(
    client: AsyncioClient, model_name: str, model_version: str | None = None
) -> ModelState:
    """Returns the state of a model at a server.

    Args:
        client: tritonclient's own asyncio client.
        model_name: The model's name.
        model_version: Its version. By default, the model is ready if any of its versions is; otherwise it has the state
            of its latest version.

    Raises:
        PyTritonClientModelUnavailableError: The server has no such model.
    """
    index: Any = await client.get_model_repository_index()
    if not isinstance(index, list):
        index = [{"name": each.name, "version": each.version, "state": each.state} for each in index.models]
    return state_in(index, model_name, version_of(model_version), "The server")


async def asyncio_get_model_config(
    client: AsyncioClient, model_name: str, model_version: str | None = None, timeout_s: float = _TIMEOUT_S
) -> TritonModelConfig:
    """Waits until a model is ready, and returns its configuration.

    Args:
        client: tritonclient's own asyncio client.
        model_name: The model's name.
        model_version: Its version; any by default.
        timeout_s: How long to wait, in seconds.

    Raises:
        PyTritonClientTimeoutError: It was not ready in time.
    """
    await asyncio_wait_for_model_ready(client, model_name, model_version, timeout_s)
    version = version_of(model_version)
    over_grpc = is_over_grpc(client)
    options = {"as_json": True} if over_grpc else {}
    message: Any = await client.get_model_config(model_name, version, **options)
    return read_config(message["config"] if over_grpc else message, "the server", version)


async def asyncio_wait_for_server_ready(asyncio_client: AsyncioClient, sleep_time_s: float) -> None:
    """Waits until a server is ready, however long that takes.

    Args:
        asyncio_client: tritonclient's own asyncio client.
        sleep_time_s: The pause between two checks, in seconds.
    """
    while not await _succeeds(asyncio_client.is_server_ready()):
        await asyncio.sleep(sleep_time_s)


async def asyncio_wait_for_model_status_loaded(
    asyncio_client: AsyncioClient, model_name: str, sleep_time_s: float, model_version: str | None = None
) -> None:
    """Waits until a model is ready, however long that takes; arguments are those of the other functions."""
    while not await _succeeds(asyncio_client.is_model_ready(model_name, version_of(model_version))):
        await asyncio.sleep(sleep_time_s)


async def asyncio_wait_for_model_ready(
    asyncio_client: AsyncioClient,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Waits until a server and one of its models are ready.

    Args:
        asyncio_client: tritonclient's own asyncio client.
        model_name: The model's name.
        model_version: Its version; any by default.
        timeout_s: How long to wait, in seconds.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelNotReadyError: The server was ready, but the model was not.
    """
    is_server_ready = False

    async def wait() -> None:
        nonlocal is_server_ready
        await asyncio_wait_for_server_ready(asyncio_client, _PAUSE_S)
        is_server_ready = True
        await asyncio_wait_for_model_status_loaded(asyncio_client, model_name, _PAUSE_S, model_version)

    try:
        await asyncio.wait_for(wait(), timeout_s)
    except asyncio.TimeoutError:
        waited = f"took longer than {timeout_s:g} s"
        if is_server_ready:
            raise PyTritonClientModelNotReadyError(f"Waiting for model {model_name!r} {waited}.") from None
        raise PyTritonClientTimeoutError(f"Waiting for the server {waited}.") from None


async def _succeeds(check: Any) -> bool:
    """Returns the result of a check; False if it fails."""
    from tritonclient.utils import InferenceServerException

    with contextlib.suppress(InferenceServerException, OSError):
        return bool(await check)
    return False
