"""The clients, and their errors, under the name of the module that nvidia-pytriton has them in."""

from __future__ import annotations

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.asyncio_decoupled import AsyncioDecoupledModelClient
from pytriton.client.base import BaseModelClient
from pytriton.client.core.settings import DEFAULT_INFERENCE_TIMEOUT_S
from pytriton.client.decoupled import DecoupledModelClient
from pytriton.client.exceptions import PyTritonClientClosedError as PyTritonClientClosedError
from pytriton.client.exceptions import PyTritonClientInferenceServerError as PyTritonClientInferenceServerError
from pytriton.client.exceptions import (
    PyTritonClientModelDoesntSupportBatchingError as PyTritonClientModelDoesntSupportBatchingError,
)
from pytriton.client.exceptions import PyTritonClientQueueFullError as PyTritonClientQueueFullError
from pytriton.client.exceptions import PyTritonClientTimeoutError as PyTritonClientTimeoutError
from pytriton.client.exceptions import PyTritonClientValueError as PyTritonClientValueError
from pytriton.client.futures import FuturesModelClient
from pytriton.client.model_client import ModelClient
from pytriton.client.warnings import NotSupportedTimeoutWarning as NotSupportedTimeoutWarning
from pytriton.model_config.triton_model_config import TritonModelConfig as TritonModelConfig

__all__ = [
    "DEFAULT_INFERENCE_TIMEOUT_S",
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "BaseModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
]
