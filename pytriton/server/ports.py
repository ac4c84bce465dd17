"""Chooses and checks the ports that the server listens on."""

from __future__ import annotations

import dataclasses
import errno
import pathlib
import random
import socket
import urllib.parse
import weakref
from typing import Any

from pytriton.constants import (
    DEFAULT_GRPC_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_METRICS_PORT,
    DEFAULT_SAGEMAKER_PORT,
    DEFAULT_VERTEX_AI_PORT,
    TRITON_LOCAL_IP,
)
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.server.config import TritonConfig, check_front_ends, check_port
from pytriton.server.running_servers import running_servers
from pytriton.utils.forks import close_in_forks
from pytriton.utils.hosts import is_loopback

_ANY_ADDRESS = "0.0.0.0"
_EPHEMERAL_PORTS = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
_FREE_PORTS = 16_384  # number of ports below the ephemeral ones that are tried at random
_FIRST_PORT = 10_000  # services with a fixed port mostly use lower ones
_ATTEMPTS = 50
_CONNECT_TIMEOUT_S = 5.0


# Ports of this process's servers: a server that was just started does not listen yet.
_taken: set[int] = set()


@dataclasses.dataclass(frozen=True)
class _Listener:
    """One of the server's listening sockets, and the settings that it comes from."""

    port: str
    address: str
    allow: str
    default_port: int
    by_default: bool = True

    def allowed(self, config: TritonConfig) -> bool:
        """Returns whether the server listens there at all."""
        allowed: bool | None = getattr(config, self.allow)
        return self.by_default if allowed is None else allowed

    def address_in(self, config: TritonConfig) -> str | None:
        """Returns the address on which the server listens; None is every address."""
        address: str | None = getattr(config, self.address) if self.address else None
        if address is None and self.address == "metrics_address":
            return config.http_address
        return address


_LISTENERS = (
    _Listener("http_port", "http_address", "allow_http", DEFAULT_HTTP_PORT),
    _Listener("grpc_port", "grpc_address", "allow_grpc", DEFAULT_GRPC_PORT),
    _Listener("metrics_port", "metrics_address", "allow_metrics", DEFAULT_METRICS_PORT),
    # The server has no address setting for these two.
    _Listener("sagemaker_port", "", "allow_sagemaker", DEFAULT_SAGEMAKER_PORT, by_default=False),
    _Listener("vertex_ai_port", "", "allow_vertex_ai", DEFAULT_VERTEX_AI_PORT, by_default=False),
)


def with_ports(config: TritonConfig) -> TritonConfig:
    """Fills in the ports, after checking that they are available.

    Args:
        config: The server's settings. A port that is None takes its default, 0 takes any free one.

    Returns:
        The settings with a number for every port that the server listens on. For as long as they exist, nobody else
        is given the free ports that were chosen.

    Raises:
        PyTritonBadParameterError: A port is out of range, two settings name the same port, or an address does not
            belong to this host.
        PyTritonValidationError: Both HTTP and gRPC are off.
        PyTritonRuntimeError: A port is in use.
    """
    check_front_ends(config)
    chosen: dict[str, Any] = {}
    held: list[socket.socket] = []
    reservations: list[socket.socket] = []
    try:
        for listener in _LISTENERS:
            if not listener.allowed(config):
                continue
            port = getattr(config, listener.port)
            port = listener.default_port if port is None else port
            _check_port(port, listener.port, chosen)
            bound = _bind(listener.address_in(config) or _ANY_ADDRESS, port, listener, reservations)
            held.append(bound)  # kept bound until all are chosen, so that no port is chosen twice
            chosen[listener.port] = bound.getsockname()[1]
    finally:
        for each in held:
            each.close()
    complete = dataclasses.replace(config, **chosen)
    for each in reservations:
        weakref.finalize(complete, each.close)
    return complete


def ports_of(config: TritonConfig) -> set[int]:
    """Returns the ports on which a server with these settings listens, without those that are to be any free port."""
    ports = set()
    for listener in _LISTENERS:
        if listener.allowed(config):
            port = getattr(config, listener.port)
            ports.add(listener.default_port if port is None else port)
    return ports - {0}


def take(config: TritonConfig) -> None:
    """Reserves the ports of ``config``, as `with_ports` filled them in, among the servers of this process."""
    _taken.update(ports_of(config))


def give_back(config: TritonConfig) -> None:
    """Releases the ports of ``config`` for other servers of this process."""
    _taken.difference_update(ports_of(config))


def unreachable(config: TritonConfig) -> str | None:
    """Finds a port of ``config``, as `with_ports` filled them in, on which the server does not accept connections.

    Returns:
        A sentence with the port and the error; None if it accepts connections on all ports.
    """
    for listener in _LISTENERS:
        if not listener.allowed(config):
            continue
        address = reachable(listener.address_in(config)), getattr(config, listener.port)
        try:
            socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return f"{address[0]} port {address[1]} (TritonConfig.{listener.port}) cannot be reached: {error}."
    return None


def is_free(port: int) -> bool:
    """Returns whether a server could listen on a port at all addresses."""
    try:
        _listen(_ANY_ADDRESS, port, []).close()
    except OSError:
        return False
    return True


def exposed(config: TritonConfig) -> list[str]:
    """Returns the address settings through which other machines reach the server, except that of the metrics."""
    listeners = [each for each in _LISTENERS if each.port != "metrics_port" and each.allowed(config)]
    open_to_all = [each for each in listeners if not is_loopback(each.address_in(config) or _ANY_ADDRESS)]
    return sorted({each.address or each.allow for each in open_to_all})


def reachable(address: str | None) -> str:
    """Returns the address at which a server that listens on ``address`` is reached from this host."""
    if address in (None, "", _ANY_ADDRESS):
        return TRITON_LOCAL_IP
    return "::1" if address == "::" else str(address)


def _check_port(port: int, setting: str, chosen: dict[str, Any]) -> None:
    check_port(setting, port)
    for other, taken in chosen.items():
        if port and port == taken:
            raise PyTritonBadParameterError(
                f"TritonConfig.{setting} and TritonConfig.{other} are both {port}; give each a port of its own."
            )


def _bind(address: str, port: int, listener: _Listener, reservations: list[socket.socket]) -> socket.socket:
    try:
        return _listen(address, port, reservations)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PyTritonRuntimeError(
                f"Port {port} (TritonConfig.{listener.port}) is in use on {address}{_by_whom(port)}, or choose another "
                f"port with TritonConfig({listener.port}=...)."
            ) from None
        settings = ", ".join(f"TritonConfig.{each}" for each in (listener.address, listener.port) if each)
        raise PyTritonBadParameterError(
            f"Cannot listen on {address} port {port} ({settings}): {error.strerror or error}; use an address of this "
            "machine, such as '127.0.0.1', or '0.0.0.0' for all of them."
        ) from error


def _by_whom(port: int) -> str:
    """Describes what listens on a port, as far as it is known, and how to stop it."""
    if port in _taken:
        return " by another Triton of this process: call its stop()"
    for server in running_servers():
        if any(urllib.parse.urlsplit(url).port == port for url in server.urls):
            return f" by a Triton that you run in process {server.pid}: stop that process"
    with socket.socket() as connection:
        is_silent = connection.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    if is_silent:
        return ", but nothing listens there: a connection has it as its own, or had it a moment ago. Try again later"
    return ": stop what listens there"


def _listen(address: str, port: int, reservations: list[socket.socket]) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: TIME_WAIT does not matter
        if port in _taken:
            raise OSError(errno.EADDRINUSE, "taken by another server of this process")
        if port == 0:
            reservations += _bind_free(bound, address)
        else:
            bound.bind((address, port))
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def _bind_free(bound: socket.socket, address: str) -> list[socket.socket]:
    """Binds to a free port, if possible one that no client's connection takes while the server is restarted.

    Returns:
        The reservation of such a port.
    """
    ports = _below_ephemeral()
    for port in random.SystemRandom().sample(ports, min(_ATTEMPTS, len(ports))):
        if port in _taken:
            continue
        reservation = _reserve(port)
        if reservation is None:
            continue
        try:
            bound.bind((address, port))
        except OSError as error:
            reservation.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return [reservation]
    bound.bind((address, 0))
    return []


def _reserve(port: int) -> socket.socket | None:
    """Reserves a free port on which the server will listen later; None if another program has reserved it."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Like ports, abstract addresses belong to a network namespace, and are released with the process.
        reservation.bind(f"\0pytriton-port-{port}")
    except OSError:
        reservation.close()
        return None
    close_in_forks(reservation)
    return reservation


def _below_ephemeral() -> range:
    """Returns the ports just below those that the kernel gives to connections."""
    try:
        lowest = int(_EPHEMERAL_PORTS.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return range(0)
    return range(max(_FIRST_PORT, lowest - _FREE_PORTS), lowest)
