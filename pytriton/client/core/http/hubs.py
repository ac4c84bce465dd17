"""Sockets for programs that use gevent: in greenlets, and where it is patched in, they must wait in its hub."""

from __future__ import annotations

import select
import socket
import ssl
import sys
from typing import Any, NamedTuple


class Sockets(NamedTuple):
    """The modules that provide sockets.

    Attributes:
        socket: Like Python's module of that name, as are the others.
        ssl: TLS.
        select: Polling.
    """

    socket: Any
    ssl: Any
    select: Any


_PLAIN = Sockets(socket, ssl, select)  # gevent's modules if the program is patched


def current_hub() -> Any:
    """Returns the gevent hub that this thread's sockets wait in; None if they block."""
    gevent = sys.modules.get("gevent")
    if gevent is None or not (_is_greenlet(gevent) or _is_patched()):
        return None
    return gevent.get_hub()


def sockets_for(hub: Any) -> Sockets:
    """Returns the modules for sockets that wait in a hub, or block if it is None."""
    if hub is None:
        return _PLAIN
    import gevent.select
    import gevent.socket
    import gevent.ssl

    return Sockets(gevent.socket, gevent.ssl, gevent.select)


def limited(timeout_s: float) -> Any:
    """Returns a context manager that raises `TimeoutError` in this greenlet after a timeout."""
    import gevent

    return gevent.Timeout(timeout_s, TimeoutError())


def _is_greenlet(gevent: Any) -> bool:
    return isinstance(gevent.getcurrent(), gevent.Greenlet)


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("socket")
