"""Clients of models on a Triton server: PyTriton's own, or any other.

Examples:
    >>> from pytriton.client import ModelClient
    >>> with ModelClient("localhost", "AddSub") as client:  # doctest: +SKIP
    ...     outputs = client.infer_sample(a=[1, 2], b=[3, 4])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.client.asyncio_client import AsyncioModelClient
    from pytriton.client.asyncio_decoupled import AsyncioDecoupledModelClient
    from pytriton.client.decoupled import DecoupledModelClient
    from pytriton.client.exceptions import (
        Failure,
        PyTritonClientClosedError,
        PyTritonClientError,
        PyTritonClientInferenceServerError,
        PyTritonClientInputError,
        PyTritonClientInvalidRequestError,
        PyTritonClientInvalidUrlError,
        PyTritonClientModelDoesntSupportBatchingError,
        PyTritonClientModelNotReadyError,
        PyTritonClientModelUnavailableError,
        PyTritonClientQueueFullError,
        PyTritonClientQueueTimeoutError,
        PyTritonClientTimeoutError,
        PyTritonClientUnreachableError,
        PyTritonClientValueError,
    )
    from pytriton.client.futures import FuturesModelClient
    from pytriton.client.model_client import ModelClient
    from pytriton.client.retry import RetryPolicy
    from pytriton.client.tls import TLSConfig

_EXCEPTIONS = "pytriton.client.exceptions"
# Modules are imported on first use, so that a program that sends requests starts fast.
_MODULES = {
    "AsyncioDecoupledModelClient": "pytriton.client.asyncio_decoupled",
    "AsyncioModelClient": "pytriton.client.asyncio_client",
    "DecoupledModelClient": "pytriton.client.decoupled",
    "Failure": _EXCEPTIONS,
    "FuturesModelClient": "pytriton.client.futures",
    "ModelClient": "pytriton.client.model_client",
    "PyTritonClientClosedError": _EXCEPTIONS,
    "PyTritonClientError": _EXCEPTIONS,
    "PyTritonClientInferenceServerError": _EXCEPTIONS,
    "PyTritonClientInputError": _EXCEPTIONS,
    "PyTritonClientInvalidRequestError": _EXCEPTIONS,
    "PyTritonClientInvalidUrlError": _EXCEPTIONS,
    "PyTritonClientModelDoesntSupportBatchingError": _EXCEPTIONS,
    "PyTritonClientModelNotReadyError": _EXCEPTIONS,
    "PyTritonClientModelUnavailableError": _EXCEPTIONS,
    "PyTritonClientQueueFullError": _EXCEPTIONS,
    "PyTritonClientQueueTimeoutError": _EXCEPTIONS,
    "PyTritonClientTimeoutError": _EXCEPTIONS,
    "PyTritonClientUnreachableError": _EXCEPTIONS,
    "PyTritonClientValueError": _EXCEPTIONS,
    "RetryPolicy": "pytriton.client.retry",
    "TLSConfig": "pytriton.client.tls",
}

__all__ = [
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "DecoupledModelClient",
    "Failure",
    "FuturesModelClient",
    "ModelClient",
    "PyTritonClientClosedError",
    "PyTritonClientError",
    "PyTritonClientInferenceServerError",
    "PyTritonClientInputError",
    "PyTritonClientInvalidRequestError",
    "PyTritonClientInvalidUrlError",
    "PyTritonClientModelDoesntSupportBatchingError",
    "PyTritonClientModelNotReadyError",
    "PyTritonClientModelUnavailableError",
    "PyTritonClientQueueFullError",
    "PyTritonClientQueueTimeoutError",
    "PyTritonClientTimeoutError",
    "PyTritonClientUnreachableError",
    "PyTritonClientValueError",
    "RetryPolicy",
    "TLSConfig",
]


_SUBMODULES = ("asyncio_utils", "auth", "client", "exceptions", "utils", "warnings")  # attributes without an import


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
