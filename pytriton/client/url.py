"""Parses the URL of a server."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT

ServerUrls: TypeAlias = str | Sequence[str] | Callable[[], Sequence[str]]
"""A server's URL, those of several servers, or a function that returns the current list of URLs."""

# https requires a proxy: Triton itself supports TLS only over gRPC.
_DEFAULT_PORTS = {"http": DEFAULT_HTTP_PORT, "https": 443, "grpc": DEFAULT_GRPC_PORT, "grpcs": DEFAULT_GRPC_PORT}
# A name, an IPv4 address, or an IPv6 address (urlsplit has checked the brackets around it).
_HOSTNAME = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)*", re.ASCII)
_PORT = re.compile(r":?[0-9]+", re.ASCII)
# Paths that requests append to the address of a server.
_REQUEST = re.compile(
    r"(/v2(/models/(?P<model>[^/]+).*|/(health|models|repository|systemsharedmemory|cudasharedmemory|trace|logging)\b.*)?"
    r"|/metrics)$"
)
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f]")  # urlsplit drops some of them


@dataclasses.dataclass(frozen=True)
class TritonUrl:
    """The address of a server, and its protocol.

    Attributes:
        scheme: ``http``, ``https``, ``grpc`` or ``grpcs``.
        hostname: Host name or address; an IPv6 address without brackets.
        port: Number of the port.
        path: The prefix of Triton's paths at a proxy, such as ``/triton``; HTTP only.

    Examples:
        >>> TritonUrl.from_url("localhost")
        TritonUrl(scheme='http', hostname='localhost', port=8000, path='')
        >>> TritonUrl.from_url("grpc://10.0.0.7").with_scheme
        'grpc://10.0.0.7:8001'
    """

    scheme: str
    hostname: str
    port: int
    path: str = ""

    @classmethod
    def from_url(cls, url: str) -> TritonUrl:
        """Parses a URL.

        Args:
            url: ``host`` or ``host:port``, optionally after ``http://``, ``https://``, ``grpc://`` or ``grpcs://``.
                The default port is 8000 for HTTP, 8001 for gRPC, and 443 for ``https``.

        Returns:
            The server's address.

        Raises:
            PyTritonClientInvalidUrlError: It has another form.
        """
        _check_text(url)
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise _invalid(url, str(error)) from None
        if parts.scheme not in _DEFAULT_PORTS:
            raise _invalid(url, f"its scheme is {parts.scheme!r}")
        if parts.username is not None or parts.query or parts.fragment or "?" in url or "#" in url:
            raise _invalid(url, "it has more than a scheme, a host, a port and a path")
        hostname = parts.hostname or ""
        if not _HOSTNAME.fullmatch(hostname) or parts.netloc.endswith(":"):
            raise _invalid(url, f"its host is {parts.netloc!r}")
        if port == 0:
            raise _invalid(url, "its port is 0")
        path = parts.path.rstrip("/")
        _check_is_no_request(url, path)
        if not _PATH.fullmatch(path) or (path and parts.scheme.startswith("grpc")):
            has_none = ", and gRPC has none" if parts.scheme.startswith("grpc") else ""
            raise _invalid(url, f"its path is {parts.path!r}{has_none}")
        return cls(parts.scheme, hostname, port or _DEFAULT_PORTS[parts.scheme], path)

    @property
    def with_scheme(self) -> str:
        """``scheme://host:port``, and the path."""
        return f"{self.scheme}://{self.without_scheme}"

    @property
    def without_scheme(self) -> str:
        """``host:port``, and the path: the form for gRPC and tritonclient."""
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}:{self.port}{self.path}"

    @property
    def protocol(self) -> str:
        """``"http"`` or ``"grpc"``."""
        return self.scheme.removesuffix("s")

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme.endswith("s")


def _check_text(url: object) -> None:
    if not isinstance(url, str):
        raise _invalid(url, f"it is of type {type(url).__name__}")
    if _UNPRINTABLE.search(url):
        raise _invalid(url, "it has spaces or control characters")
    if _PORT.fullmatch(url):
        raise _invalid(url, f"it is a port without a host, as in 'localhost:{url.lstrip(':')}'")
    if "," in url:
        raise _invalid(url, "it has a comma, and several URLs are given as a list")


def _check_is_no_request(url: str, path: str) -> None:
    """Refuses the address of a model and the like: requests append that to the server's."""
    request = _REQUEST.search(path)
    if request is None:
        return
    model, own = request["model"], url.rstrip("/").removesuffix(request[0])
    if model:
        raise _invalid(url, f"it is the address of a model, whose name is {model!r} and whose server is {own!r}")
    if path.endswith("/metrics"):
        raise _invalid(
            url, f"it is the address of metrics, and requests go to another port ({DEFAULT_HTTP_PORT} by default)"
        )
    raise _invalid(url, f"it is the address of a request, and that of its server is {own!r}")


def _invalid(url: object, why: str) -> PyTritonClientInvalidUrlError:
    return PyTritonClientInvalidUrlError(
        f"{url!r} is not a valid URL of a server: {why}; use host, host:port, http://…, https://…, grpc://… or grpcs://…"
    )
