"""Chooses the server for a command, and finds its token if this user runs it."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.client.core.deadlines import check_timeout
from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.client.url import TritonUrl
from pytriton.server.running_servers import RunningServer, running_servers
from pytriton.utils.hosts import is_loopback

DEFAULT_URL = "localhost:8000"
DEFAULT_TIMEOUT_S = 30.0
"""How long a response may take by default."""
URL_HELP = (
    "localhost, localhost:8000, http://…, grpc://… and the like; by default, the server that you run on this machine, "
    f"or {DEFAULT_URL}"
)


def choose_server(url: str | None, token: str | None, command: str) -> tuple[str, str | None]:
    """Returns the URL and the token for a command.

    Args:
        url: The given URL; by default that of the only server of this user on this machine, or ``localhost:8000`` if
            there is none.
        token: The given token; by default that of the server, if this user runs it on this machine.
        command: The command's words, for messages.

    Raises:
        PyTritonClientInvalidUrlError: No URL is given, and this user runs several servers.
    """
    servers = running_servers()
    if url is None:
        url = _only(servers, command)
    return url, token if token is not None else _token_of(url, servers)


def grpc_url(url: str) -> str:
    """Returns the URL for gRPC of the server at a URL, if this user runs it on this machine; otherwise the same URL."""
    parsed = TritonUrl.from_url(url)
    if parsed.protocol == "grpc" or not is_loopback(parsed.hostname):
        return url
    for server in running_servers():
        urls = [TritonUrl.from_url(each) for each in server.urls]
        if any(each.port == parsed.port for each in urls):
            return next((each.with_scheme for each in urls if each.protocol == "grpc"), url)
    return url


def response_timeout_s(timeout_s: float | None) -> float:
    """Returns how long a response may take, given the value of ``--timeout``.

    Raises:
        PyTritonClientValueError: It is not positive.
    """
    return DEFAULT_TIMEOUT_S if timeout_s is None else check_timeout("--timeout", timeout_s)


def _only(servers: Sequence[RunningServer], command: str) -> str:
    if len(servers) > 1:
        running = ", ".join(f"{_short(server)} (process {server.pid})" for server in servers)
        raise PyTritonClientInvalidUrlError(
            f"You run {len(servers)} servers: {running}; name one, as in: {command} {_short(servers[0])}"
        )
    return servers[0].urls[0] if servers else DEFAULT_URL


def _short(server: RunningServer) -> str:
    return server.urls[0].removeprefix("http://").replace("127.0.0.1", "localhost")


def _token_of(url: str, servers: Sequence[RunningServer]) -> str | None:
    parsed = TritonUrl.from_url(url)
    if not is_loopback(parsed.hostname):
        return None
    ports = {TritonUrl.from_url(each).port: server.token for server in servers for each in server.urls}
    return ports.get(parsed.port)
