"""The gateway: an ASGI application that serves the models of a Triton server to the internet, as JSON.

Examples:
    >>> from pytriton.gateway import GatewayConfig
    >>> triton.serve(gateway=GatewayConfig(port=8080))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.gateway.access import create_key
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.openai import OpenAIChat, OpenAICompletion, OpenAIEmbeddings

if TYPE_CHECKING:
    from pytriton.gateway.app import Gateway

__all__ = ["Gateway", "GatewayConfig", "OpenAIChat", "OpenAICompletion", "OpenAIEmbeddings", "create_key"]


def __getattr__(name: str) -> Any:
    """Imports the application on first use: the settings do not need its packages."""
    if name != "Gateway":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pytriton.gateway.app import Gateway
    except ModuleNotFoundError as error:
        raise ImportError(f"The gateway needs more packages: pip install 'pytriton[gateway]' ({error}).") from error
    return Gateway
