"""The gateway: an ASGI application that serves the models of a Triton server to the internet, as JSON.

Examples:
    >>> from pytriton.gateway import GatewayConfig
    >>> triton.serve(gateway=GatewayConfig(port=8080))  # doctest: +SKIP
"""

from __future__ import annotations

from pytriton.gateway.access import create_key
from pytriton.gateway.app import Gateway
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.openai import OpenAIChat, OpenAICompletion, OpenAIEmbeddings

__all__ = ["Gateway", "GatewayConfig", "OpenAIChat", "OpenAICompletion", "OpenAIEmbeddings", "create_key"]
