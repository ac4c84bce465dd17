"""Runs the gateway in a thread, on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.gateway.app import Gateway
from pytriton.gateway.certificate import Certificate
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.handshakes import Handshakes
from pytriton.gateway.protocol import LimitedProtocol, protocol_of
from pytriton.utils.forks import close_in_forks
from pytriton.utils.limits import allow_files

LOGGER = logging.getLogger(__name__)

_BACKLOG = 2048
_START_S = 30.0
_LOOK_S = 1.0
_ENDING_S = 2.0  # for streams that are still open
_MANY_FILES = 1 << 20  # more than Linux allows a process by default
_OBJECTS_PER_COLLECTION = 20_000  # concurrent requests have many objects, none of which is garbage


class GatewayServer:
    """Serves an application from its start to its stop.

    Args:
        app: The application.
        config: Where to listen.

    Raises:
        PyTritonRuntimeError: The address is in use or not one of this machine, or the certificate cannot be used.
    """

    def __init__(self, app: Gateway, config: GatewayConfig) -> None:
        self._app = app
        self._scheme = "http" if config.tls_certificate is None else "https"
        self._host = config.host
        self._drain_s = config.drain_secs
        self._max_connections = int(min(config.max_connections, _MANY_FILES))
        self._drained_at: float | None = None  # time.monotonic()
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http=protocol_of(config),
                lifespan="on",
                ws="none",
                ssl_certfile=config.tls_certificate,
                ssl_keyfile=config.tls_key,
                ssl_ciphers="",  # Python's; uvicorn's were weak in earlier versions
            ),
            config,
        )
        try:
            self._server.load()
        except OSError as error:  # SSLError, too
            raise PyTritonRuntimeError(
                f"The gateway cannot use certificate {config.tls_certificate} with key {config.tls_key}: {error}."
            ) from error
        self._socket = _bound(config)
        self._thread = threading.Thread(target=self._run, name="pytriton-gateway", daemon=True)

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Starts to accept requests."""
        allow_files(self._max_connections, "the connections of the gateway")
        self._thread.start()
        if not self._server.begun.wait(_START_S):
            raise PyTritonRuntimeError(f"The gateway at {self.url} did not start.")
        LOGGER.info("The gateway listens at %s.", self.url)

    def is_alive(self) -> bool:
        """Returns whether it is running."""
        return self._thread.is_alive()

    def wait(self, woken: threading.Event) -> None:
        """Waits until an event is set.

        Raises:
            PyTritonRuntimeError: The gateway has failed.
        """
        while not woken.wait(_LOOK_S):
            if not self._thread.is_alive():
                raise PyTritonRuntimeError(f"The gateway at {self.url} has stopped; see its log.")

    def drain(self) -> None:
        """Makes the gateway report that it is not ready; requests are still served."""
        self._app.drain()
        if self._drained_at is None:
            self._drained_at = time.monotonic() + self._drain_s

    def stop(self, timeout_s: float) -> int:
        """Drains for ``GatewayConfig.drain_secs``, then refuses new requests, and stops.

        Args:
            timeout_s: How long to wait for requests in flight. Streams end with an error shortly before.

        Returns:
            Number of requests that took longer, and are lost.
        """
        self.drain()
        assert self._drained_at is not None
        self._thread.join(max(0.0, self._drained_at - time.monotonic()))
        self._server.config.timeout_graceful_shutdown = max(1, int(timeout_s))
        self._server.should_exit = True
        ending_s = min(_ENDING_S, timeout_s / 2)
        self._thread.join(timeout_s - ending_s)
        if self._thread.is_alive():
            self._server.call_soon(self._app.end_streams)
            self._thread.join(ending_s + 1)
        self._socket.close()
        return self._app.lost

    def _run(self) -> None:
        try:
            with _rare_garbage_collections():
                self._server.run(sockets=[self._socket])
        except Exception:
            LOGGER.exception("The gateway has failed.")
        finally:
            self._server.begun.set()


@contextlib.contextmanager
def _rare_garbage_collections() -> Iterator[None]:
    """Collects garbage less often, and skips the objects that exist now: a scan of all objects takes 20 ms."""
    threshold, *others = gc.get_threshold()
    if not 0 < threshold < _OBJECTS_PER_COLLECTION:
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *others)
    try:
        yield
    finally:
        gc.set_threshold(threshold, *others)
        gc.unfreeze()


class _Server(uvicorn.Server):
    """uvicorn's server, with limits on TLS handshakes, and with an event that is set once it accepts requests."""

    def __init__(self, config: uvicorn.Config, limits: GatewayConfig) -> None:
        super().__init__(config)
        self.begun = threading.Event()
        self._limits = limits
        self._certificate: Certificate | None = None
        self._handshakes: Handshakes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def load(self) -> None:
        """Loads the certificate, if there is one.

        Raises:
            OSError: It cannot be used.
        """
        self.config.load()
        certificate, key = self._limits.tls_certificate, self._limits.tls_key
        if self.config.ssl is not None and certificate is not None and key is not None:
            self._certificate = Certificate(self.config.ssl, certificate, key)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function in the event loop, if that runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(function)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Starts to listen."""
        self._loop = asyncio.get_running_loop()
        certificate = self._certificate
        await super().startup(sockets if certificate is None else [])
        if certificate is not None:
            handshakes = Handshakes(certificate, self._limits, self.server_state.connections, self._protocol)
            self._handshakes = handshakes
            for each in sockets or ():
                server = await asyncio.get_running_loop().create_server(
                    lambda: handshakes, sock=each, backlog=self.config.backlog
                )
                self.servers.append(server)
        self.begun.set()

    def _protocol(self) -> asyncio.Protocol:
        protocol = cast(type[LimitedProtocol], self.config.http_protocol_class)
        return protocol(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Frees the port, even if another process has a copy of its socket, and stops."""
        for each in sockets or ():
            with contextlib.suppress(OSError):  # another process has done so
                each.shutdown(socket.SHUT_RDWR)
        if self._handshakes is not None:
            self._handshakes.cancel()
        await super().shutdown(sockets)


def _bound(config: GatewayConfig) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise PyTritonRuntimeError(
            f"The gateway cannot listen at {config.host}, port {config.port}: {error}. Choose another port or host "
            "with GatewayConfig(port=...) or GatewayConfig(host=...)."
        ) from error
    bound.set_inheritable(False)
    close_in_forks(bound)
    return bound
