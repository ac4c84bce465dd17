"""How to connect to a server, and to notice that its host is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import socket
from typing import Any

from pytriton.client.tls import TLSConfig

FAILOVER_TIMEOUT_S = 5.0
"""How long connecting to one of several servers may take, before the next one is tried."""
SILENCE_S = 30
"""How long the host of a connected server may acknowledge nothing, before the connection counts as broken."""
_PROBE_AFTER_S = 15
_PROBE_PAUSE_S = 5
# Only Linux has all of them.
_KEEPALIVE = {
    "TCP_KEEPIDLE": _PROBE_AFTER_S,
    "TCP_KEEPINTVL": _PROBE_PAUSE_S,
    "TCP_KEEPCNT": (SILENCE_S - _PROBE_AFTER_S) // _PROBE_PAUSE_S,
    "TCP_USER_TIMEOUT": SILENCE_S * 1000,
}


@dataclasses.dataclass(frozen=True)
class ConnectOptions:
    """How to connect to a server.

    Attributes:
        tls: TLS settings.
        timeout_s: How long it may take, within the timeout of the request.
    """

    tls: TLSConfig = dataclasses.field(default_factory=TLSConfig)
    timeout_s: float = math.inf


def keep_alive(connected: Any) -> None:
    """Makes the system check a connection while nothing arrives: a host that has lost its power closes none.

    Args:
        connected: The socket, of any library.
    """
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
