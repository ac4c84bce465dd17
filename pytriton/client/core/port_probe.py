"""Finds out that a port speaks the other one of HTTP and gRPC."""

from __future__ import annotations

import contextlib
import socket

from pytriton.client.core.failures import server_error
from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError
from pytriton.client.url import TritonUrl
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT

_TIMEOUT_S = 1.0
_FRAME_HEADER = 9  # bytes, of HTTP/2
_MAX_HEAD = 2048
_SETTINGS = 4  # the type of the frame with which a server of HTTP/2 begins
# How gRPC describes that nothing listens, or that there is no such host.
_NOBODY = ("Connection refused", "resol", "unreachable", "No route")


def is_suspicious(url: TritonUrl, error: object) -> bool:
    """Returns whether an error may come from a port of the other protocol."""
    if url.secure or not isinstance(error, PyTritonClientInferenceServerError):
        return False
    if error.failure is Failure.UNREACHABLE:
        return url.protocol == "grpc" and not any(words in error.message for words in _NOBODY)
    return error.failure in (Failure.LOST, Failure.MALFORMED)


def other_protocol(url: TritonUrl) -> PyTritonClientInferenceServerError | None:
    """Returns the error to raise if a port speaks the other protocol than its URL says; blocks for up to a second."""
    found = _protocol_at(url)
    if found is None or found == url.protocol:
        return None
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    name, wanted, default = (
        ("gRPC", "HTTP", DEFAULT_HTTP_PORT) if found == "grpc" else ("HTTP", "gRPC", DEFAULT_GRPC_PORT)
    )
    return server_error(
        f"{url.with_scheme} is a port of {name}; use {found}://{host}:{url.port}, or the server's port for {wanted}, "
        f"which is {default} by default.",
        Failure.MALFORMED,
    )


def _protocol_at(url: TritonUrl) -> str | None:
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with (
        contextlib.suppress(OSError),
        socket.create_connection((url.hostname, url.port), _TIMEOUT_S) as connection,
        connection.makefile("rb") as response,
    ):
        connection.sendall(request)
        start = response.read(_FRAME_HEADER)
        if start.startswith(b"HTTP/1"):
            return "http" if _is_of_triton(start + response.read1(_MAX_HEAD)) else None
        if len(start) == _FRAME_HEADER and start[3] == _SETTINGS and start[5:] == bytes(4):
            return "grpc"
    return None


def _is_of_triton(response: bytes) -> bool:
    """Returns whether a response may be Triton's, and not that of a proxy whose server is not there yet."""
    status = response.split(b" ", 2)[1:2]
    return bool(status) and not status[0].startswith(b"5") and b"text/html" not in response.lower()
