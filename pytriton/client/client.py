"""The clients, under the name of the module that nvidia-pytriton has them in."""

from __future__ import annotations

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled import AsyncioDecoupledModelClient
from pytriton.client.decoupled import DecoupledModelClient
from pytriton.client.futures import FuturesModelClient
from pytriton.client.model_client import ModelClient

__all__ = [
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
]
