"""The settings of the gateway."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Sequence

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway.openai.models import OpenAIModel

_HIGHEST_PORT = 65535
_LIMITS = (
    "max_header_size",
    "max_connections",
    "read_timeout_s",
    "keep_alive_timeout_s",
    "max_body_size",
    "max_total_body_size",
    "max_stream_backlog",
    "max_samples",
    "max_requests",
    "request_timeout_s",
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+/?", re.IGNORECASE)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
RESERVED_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
"""Parameters of a request that mean something to Triton, and that the model does not get."""
RESERVED_PREFIXES = ("shared_memory", "pytriton_")
"""Beginnings of parameters that clients of the gateway cannot set."""


@dataclasses.dataclass(frozen=True)
class GatewayConfig:
    """Where the gateway listens, and its limits.

    Attributes:
        host: The address to listen at; ``0.0.0.0`` for all IPv4 addresses of the machine.
        port: The port; 0 chooses a free one.
        tls_certificate: Path of the certificate chain (PEM); with it, the gateway speaks HTTPS. It is loaded again when
            it or its key changes.
        tls_key: Path of the certificate's private key (PEM).
        api_keys: Path of a file with API keys, created by `create_key`; with None, no key is needed.
        openai: Models that are served with OpenAI's API, as `OpenAIChat`, `OpenAICompletion` or `OpenAIEmbeddings`.
        forwarded_headers: Names of headers that become parameters of the request, which the function finds in
            ``request.parameters`` under their names in lower case. Clients cannot set these parameters otherwise. Their
            values are decoded as UTF-8, or else as Latin-1.
        cors_origins: Origins whose pages may send requests from a browser, like ``https://example.com``; ``*`` for any.
        allowed_hosts: Host names that requests may address, except for ``/health``: ``example.com`` or
            ``*.example.com``, without the port; empty for any name.
        max_header_size: Maximum size of the URL and the headers of a request, in bytes.
        max_connections: Maximum number of open connections; others are closed at once. There are fewer if the process
            may not open that many files (``ulimit -Hn``).
        read_timeout_s: How long a client may take for the TLS handshake or to send a request, or receive nothing of its
            response, in seconds.
        keep_alive_timeout_s: How long a connection may wait for its next request, in seconds; more than the idle
            timeout of a load balancer in front, which would otherwise send requests on connections that are being
            closed. It is 5 seconds at most for connections that begin to wait while more than half of
            ``max_connections`` are open.
        max_body_size: Maximum size of the body of a request, in bytes.
        max_total_body_size: Maximum size of all bodies in memory, in bytes: those of requests that are being received
            or served, and of responses that clients have not received yet. Requests for which there is no room are
            refused with status 503, except those of up to 64 KiB.
        max_stream_backlog: Maximum number of bytes of a stream that wait in memory because its client is slower than
            the model. If more wait, the request is cancelled, and the stream ends with an error.
        max_samples: Maximum number of samples of a request; in OpenAI's API, of prompts times ``n``.
        max_requests: Maximum number of requests in flight; others are refused with status 503.
        request_timeout_s: How long a response, or the next response of a stream, may take, in seconds.
        continue_traces: Whether a request continues the OpenTelemetry trace of its client. Otherwise each one starts a
            trace, so that clients cannot decide what is recorded.
        drain_secs: Seconds at the start of a stop for which the gateway reports that it is not ready but still serves
            requests, so that load balancers can notice. If it runs in the process of its server,
            ``TritonConfig.drain_secs`` applies as well.
        access_log: Whether to log each request, except those for ``/health``, at level ``INFO`` by the logger
            ``pytriton.gateway.access``.

    Raises:
        PyTritonBadParameterError: A setting has an invalid value.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    tls_certificate: str | None = None
    tls_key: str | None = None
    api_keys: str | os.PathLike[str] | None = None
    openai: Sequence[OpenAIModel] = ()
    forwarded_headers: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_header_size: int = 32 << 10
    max_connections: int = 10_000
    read_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 75.0
    max_body_size: int = 64 << 20
    max_total_body_size: int = 1 << 30
    max_stream_backlog: int = 256 << 20
    max_samples: int = 10_000
    max_requests: int = 10_000
    request_timeout_s: float = 60.0
    continue_traces: bool = True
    drain_secs: float = 0.0
    access_log: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        port = self.port
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _HIGHEST_PORT:
            raise PyTritonBadParameterError(
                f"GatewayConfig.port is {port!r}; use a port from 1 to {_HIGHEST_PORT}, or 0 for a free one."
            )
        for name in _LIMITS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise PyTritonBadParameterError(f"{name} is {value!r}; give a positive number.")
        if (
            isinstance(self.drain_secs, bool)
            or not isinstance(self.drain_secs, int | float)
            or not 0 <= self.drain_secs < math.inf
        ):
            raise PyTritonBadParameterError(f"drain_secs is {self.drain_secs!r}; give a number of seconds, 0 or more.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PyTritonBadParameterError("TLS needs both tls_certificate and tls_key.")
        for declared in self.openai:
            if not isinstance(declared, OpenAIModel):
                raise PyTritonBadParameterError(f"openai has {declared!r}; give OpenAIChat(...) or similar.")
        if isinstance(self.forwarded_headers, str) or not all(map(_can_be_forwarded, self.forwarded_headers)):
            raise PyTritonBadParameterError(
                f"forwarded_headers is {self.forwarded_headers!r}; give a tuple of names, such as 'x-tenant', but none "
                f"of Triton's own parameters: {', '.join(RESERVED_PARAMETERS)}."
            )
        if isinstance(self.cors_origins, str) or not all(map(_is_origin, self.cors_origins)):
            raise PyTritonBadParameterError(
                f"cors_origins is {self.cors_origins!r}; give a tuple of origins, such as 'https://example.com', "
                "or '*' for all."
            )
        if isinstance(self.allowed_hosts, str) or any("/" in host or not host for host in self.allowed_hosts):
            raise PyTritonBadParameterError(
                f"allowed_hosts is {self.allowed_hosts!r}; give a tuple of names, such as 'example.com'."
            )

    @functools.cached_property
    def forwarded_names(self) -> tuple[str, ...]:
        """The names of `forwarded_headers` in lower case."""
        return tuple(name.lower() for name in self.forwarded_headers)


def _is_origin(origin: object) -> bool:
    return isinstance(origin, str) and (origin in ("*", "null") or _ORIGIN.fullmatch(origin) is not None)


def _can_be_forwarded(header: object) -> bool:
    return (
        isinstance(header, str)
        and _HEADER.fullmatch(header) is not None
        and header.lower() not in RESERVED_PARAMETERS
        and not header.lower().startswith(RESERVED_PREFIXES)
    )
