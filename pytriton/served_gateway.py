"""The gateway that `Triton.serve` starts in front of its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonRuntimeError

if TYPE_CHECKING:
    from pytriton.gateway import GatewayConfig
    from pytriton.gateway.local import Triton
    from pytriton.gateway.server import GatewayServer


def start_gateway(triton: Triton, config: GatewayConfig) -> GatewayServer:
    """Starts a gateway in a thread of this process.

    Args:
        triton: The server whose models it serves.
        config: Its settings.

    Raises:
        PyTritonRuntimeError: The extra ``gateway`` is not installed, or the gateway cannot be started.
    """
    try:
        from pytriton.gateway import Gateway
        from pytriton.gateway.server import GatewayServer
    except ImportError as error:
        raise PyTritonRuntimeError(str(error)) from error
    gateway = GatewayServer(Gateway(triton, config), config)
    gateway.start()
    return gateway
