"""Detects what listens at a port that does not use the protocol of its URL."""

from __future__ import annotations

import contextlib
import socket
import time

from pytriton.client.core.failures import server_error
from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError
from pytriton.client.url import TritonUrl
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT

_TIMEOUT_S = 1.0
_FRAME_HEADER = 9  # bytes, of HTTP/2
_MAX_HEAD = 2048
_MAX_SHOWN = 40
_SETTINGS = 4  # the type of the frame with which a server of HTTP/2 begins
_HTTP_1 = b"HTTP/1"
_END_OF_HEAD = b"\r\n\r\n"
_TLS_ALERT = b"\x15\x03"
_METRICS = b"# HELP nv_"
# The words of gRPC and the system if nothing listens, or there is no such host.
_NOBODY = ("Connection refused", "Connect call failed", "resol", "Name or service", "unreachable", "No route")
_NAMES = {"http": ("HTTP", DEFAULT_HTTP_PORT), "grpc": ("gRPC", DEFAULT_GRPC_PORT)}


def is_suspicious(url: TritonUrl, error: object) -> bool:
    """Returns whether an error may come from a port of another protocol, or another program's."""
    if not isinstance(error, PyTritonClientInferenceServerError):
        return False
    if error.failure is Failure.UNREACHABLE:  # the connection or its handshake failed
        has_beginning = url.secure or url.protocol == "grpc"
        return has_beginning and not any(words in error.message for words in _NOBODY)
    return error.failure in (Failure.LOST, Failure.MALFORMED)


def other_protocol(url: TritonUrl) -> PyTritonClientInferenceServerError | None:
    """Returns the error to raise if a port certainly uses another protocol than its URL; blocks for up to two seconds.

    None means that it uses that protocol, or may do so later, such as a proxy whose server has not started yet.
    """
    response = _response(url, "/v2/health/live", _END_OF_HEAD)
    problem = _problem_of_tls(url, response) if url.secure else _problem(url, response)
    return None if problem is None else server_error(problem, Failure.MALFORMED)


def _problem(url: TritonUrl, response: bytes) -> str | None:
    if response.startswith(_HTTP_1):
        return _problem_of_http(url, response)
    if _is_http_2(response):
        return None if url.protocol == "grpc" else _is_port_of("grpc", url)
    if response.startswith(_TLS_ALERT):
        return f"{url.with_scheme} is a port of TLS; use {url.protocol}s://{url.without_scheme}."
    if response:
        return (
            f"The server at {url.with_scheme} does not respond like Triton: it speaks neither HTTP nor gRPC, and its "
            f"response begins with {_shown(response)}. Check its address and port ({DEFAULT_HTTP_PORT} for HTTP and "
            f"{DEFAULT_GRPC_PORT} for gRPC by default)."
        )
    return None


def _problem_of_tls(url: TritonUrl, response: bytes) -> str | None:
    spoken = "http" if _may_be_triton(response) else "grpc" if _is_http_2(response) else None
    if spoken is None:
        return None
    own = f"{spoken}://{url.without_scheme if spoken == 'http' else url.without_scheme.removesuffix(url.path)}"
    return f"{url.with_scheme} does not speak TLS; use {own}, or the port of a proxy that does."


def _problem_of_http(url: TritonUrl, response: bytes) -> str | None:
    name, default = _NAMES[url.protocol]
    if _METRICS in _response(url, "/metrics", _METRICS):
        return (
            f"{url.with_scheme} is a port for metrics; use the server's port for {name}, which is {default} by default."
        )
    status = _status(response)
    if url.protocol == "http" or status.startswith("5"):
        return None
    if _may_be_triton(response):
        return _is_port_of("http", url)
    return (
        f"The server at {url.with_scheme} does not respond like Triton: it speaks HTTP/1, not gRPC, with status "
        f"{status}. Use the server's port for {name}, which is {default} by default."
    )


def _is_port_of(found: str, url: TritonUrl) -> str:
    name, default = _NAMES[url.protocol]
    own = f"{found}://{url.without_scheme.removesuffix(url.path)}"
    return (
        f"{url.with_scheme} is a port of {_NAMES[found][0]}; use {own}, or the server's port for {name}, which is "
        f"{default} by default."
    )


def _may_be_triton(response: bytes) -> bool:
    is_page = b"text/html" in response.lower()
    return response.startswith(_HTTP_1) and not is_page and _status(response) in ("200", "400", "403")


def _status(response: bytes) -> str:
    return response[9:12].decode("latin-1")  # after "HTTP/1.1 "


def _is_http_2(response: bytes) -> bool:
    """Returns whether a response begins with a frame of settings, as a server of HTTP/2 does."""
    return len(response) >= _FRAME_HEADER and response[3] == _SETTINGS and response[5:_FRAME_HEADER] == bytes(4)


def _response(url: TritonUrl, path: str, enough: bytes) -> bytes:
    """Returns the beginning of the response to a request over HTTP, up to some bytes; empty if there is none."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    deadline = time.monotonic() + _TIMEOUT_S
    response = b""
    with contextlib.suppress(OSError), socket.create_connection((url.hostname, url.port), _TIMEOUT_S) as connection:
        connection.sendall(request)
        while len(response) < _MAX_HEAD and enough not in response and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            received = connection.recv(_MAX_HEAD)
            response += received
            if not received or (len(response) >= _FRAME_HEADER and not response.startswith(_HTTP_1)):
                break
    return response


def _shown(response: bytes) -> str:
    text = response[:_MAX_SHOWN]
    return repr(text.decode()) if text.isascii() and b"\0" not in text else repr(text)
