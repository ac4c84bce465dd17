"""The clients, under the name of their module in nvidia-pytriton."""

from __future__ import annotations

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled import AsyncioDecoupledModelClient
from pytriton.client.base import BaseModelClient
from pytriton.client.core.settings import DEFAULT_INFERENCE_TIMEOUT_S
from pytriton.client.decoupled import DecoupledModelClient
from pytriton.client.futures import FuturesModelClient
from pytriton.client.model_client import ModelClient

__all__ = [
    "DEFAULT_INFERENCE_TIMEOUT_S",
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "BaseModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
]
