"""The gateway: an ASGI application that serves the models of a Triton server to the internet, as JSON.

Examples:
    >>> from pytriton.gateway import GatewayConfig
    >>> triton.serve(gateway=GatewayConfig(port=8080))  # doctest: +SKIP
"""

from __future__ import annotations

from pytriton.gateway.access import create_key
from pytriton.gateway.app import Gateway
from pytriton.gateway.config import GatewayConfig

__all__ = ["Gateway", "GatewayConfig", "create_key"]
