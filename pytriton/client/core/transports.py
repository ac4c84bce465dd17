"""The transport that fits a URL."""

from __future__ import annotations

from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.grpc.asyncio_transport import AsyncioGrpcTransport
from pytriton.client.core.grpc.transport import GrpcTransport
from pytriton.client.core.http.asyncio_transport import AsyncioHttpTransport
from pytriton.client.core.http.transport import HttpTransport
from pytriton.client.url import TritonUrl


def blocking_transport(url: TritonUrl, options: ConnectOptions) -> HttpTransport | GrpcTransport:
    """Returns a blocking transport to the server at a URL."""
    kind = HttpTransport if url.protocol == "http" else GrpcTransport
    return kind(url, options)


def asyncio_transport(
    url: TritonUrl, options: ConnectOptions, max_connections: int
) -> AsyncioHttpTransport | AsyncioGrpcTransport:
    """Returns an asyncio transport to the server at a URL."""
    if url.protocol == "http":
        return AsyncioHttpTransport(url, options, max_connections)
    return AsyncioGrpcTransport(url, options)
