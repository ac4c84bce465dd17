"""Sockets of programs that use gevent, which must wait by its hub: in greenlets, and wherever it is patched in."""

from __future__ import annotations

import select
import socket
import ssl
import sys
from typing import Any, NamedTuple


class Sockets(NamedTuple):
    """The modules to make sockets with.

    Attributes:
        socket: As Python's module of that name, like the others.
        ssl: TLS.
        select: Polling.
    """

    socket: Any
    ssl: Any
    select: Any


_PLAIN = Sockets(socket, ssl, select)  # those of gevent where a program is patched


def current_hub() -> Any:
    """Returns the hub of gevent that this thread's sockets wait by; None where they block."""
    gevent = sys.modules.get("gevent")
    if gevent is None or not (_is_greenlet(gevent) or _is_patched()):
        return None
    return gevent.get_hub()


def sockets_for(hub: Any) -> Sockets:
    """Returns the modules for sockets that wait by a hub, or block if it is None."""
    if hub is None:
        return _PLAIN
    import gevent.select
    import gevent.socket
    import gevent.ssl

    return Sockets(gevent.socket, gevent.ssl, gevent.select)


def limited(timeout_s: float) -> Any:
    """Returns a context manager that raises `TimeoutError` in this greenlet after a while."""
    import gevent

    return gevent.Timeout(timeout_s, TimeoutError())


def _is_greenlet(gevent: Any) -> bool:
    return isinstance(gevent.getcurrent(), gevent.Greenlet)


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("socket")
