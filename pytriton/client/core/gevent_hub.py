"""The hub that gevent needs in each thread that uses tritonclient's HTTP client.

gevent leaks the hub of a thread when the thread ends: two file descriptors, and another thread that looked up the
server's name. A program that sends requests from many short-lived threads would run out of both. The hubs that are
created here end with their threads, and look up names without a permanent thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import weakref
from typing import Any

from pytriton.client.core import fork_safety


class _Threads(threading.local):
    owner: _HubOwner | None = None
    process: object = None
    lookup_timeout_s = 60.0
    """The timeout of a name lookup; set before each call."""


THREADS = _Threads()


def prepare_thread() -> None:
    """Creates a hub for this thread, unless it has one, or is the main thread, whose hub may stay."""
    hub = get_hub_if_exists()
    if hub is not None and THREADS.process is not fork_safety.process and fork_safety.is_child():
        import gevent

        gevent.reinit()  # else it waits for the sockets of the process that this one was forked from
        THREADS.owner = None
    THREADS.process = fork_safety.process
    is_main = threading.current_thread() is threading.main_thread()
    if THREADS.owner is None and not is_main and hub is None:
        THREADS.owner = _HubOwner()


def close_with_thread(client: Any) -> None:
    """Closes a tritonclient client when this thread ends, while its hub still exists."""
    if THREADS.owner is not None:
        THREADS.owner.clients.add(client)


class _HubOwner:
    """Destroys the hub of its thread when the thread ends and deletes its local variables."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.clients: weakref.WeakSet[Any] = weakref.WeakSet()
        import gevent
        from gevent.resolver.blocking import Resolver

        class Lookup(Resolver):  # type: ignore[misc]
            """Looks up names in a temporary thread, because a lookup may hang."""

            def getaddrinfo(self, host: Any, *arguments: Any) -> Any:
                return _look_up(host, *arguments)

        self._hub = gevent.get_hub()
        self._hub.resolver = Lookup(self._hub)

    def __del__(self) -> None:
        if fork_safety.keep_of_parent(self._hub, self._pid):
            return
        with contextlib.suppress(Exception):  # the interpreter ends
            for client in list(self.clients):
                client.close()
            self._hub.destroy(destroy_loop=True)
            # gevent no longer knows the hub, so closing created another one.
            other = get_hub_if_exists()
            if other is not None:
                other.destroy(destroy_loop=True)


def get_hub_if_exists() -> Any:
    """Returns this thread's hub, or None. If gevent's internals cannot be read, assumes that there is one."""
    try:
        from gevent._hub_local import get_hub_if_exists as look
    except ImportError:
        return object()
    return look()


def _look_up(host: Any, *arguments: Any) -> Any:
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            results.put((socket.getaddrinfo(host, *arguments), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=look_up, name="pytriton-lookup", daemon=True).start()
    try:
        found, error = results.get(timeout=THREADS.lookup_timeout_s)
    except queue.Empty:
        raise TimeoutError(f"the name {host!r} was not found in time") from None
    if error is not None:
        raise error
    return found
