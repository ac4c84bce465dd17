"""Channels of gRPC, blocking and in asyncio."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pytriton.client.core.grpc.api import MAX_MESSAGE_BYTES
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.utils.hosts import is_loopback

_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Makes a new channel connect at once, without the back-off of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
]


def channel_options(url: TritonUrl) -> list[tuple[str, int]]:
    """Returns gRPC's options for a channel to a server."""
    # gRPC would connect even to this machine through the proxy that http_proxy names.
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if is_loopback(url.hostname) else _OPTIONS


class Channel:
    """A connection to a server; callers encode and decode its messages.

    Args:
        url: The server's URL.
        tls: TLS settings.
        library: ``grpc``, or ``grpc.aio`` for the running event loop.

    Attributes:
        unary: Returns the method of a path, which has one request and one response.
        stream: Returns the method of a path, which has a stream of requests and one of responses.
        close: Closes the connection; in asyncio, returns an awaitable.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """

    def __init__(self, url: TritonUrl, tls: TLSConfig, library: Any) -> None:
        """Connects on first use."""
        options = channel_options(url)
        if url.secure:
            channel = library.secure_channel(url.without_scheme, _credentials(tls), options=options)
        else:
            channel = library.insecure_channel(url.without_scheme, options=options)
        self.unary = functools.cache(channel.unary_unary)
        self.stream = channel.stream_stream
        self.close = channel.close


def blocking_channel(url: TritonUrl, tls: TLSConfig) -> Channel:
    """Returns a channel for threads; see `Channel`."""
    return Channel(url, tls, grpc)


def asyncio_channel(url: TritonUrl, tls: TLSConfig) -> Channel:
    """Returns a channel for the running event loop; see `Channel`."""
    return Channel(url, tls, grpc.aio)


def _credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.root_certificates),
        private_key=_read(tls.private_key or tls.certificate_chain),
        certificate_chain=_read(tls.certificate_chain),
    )


def _read(file: str | os.PathLike[str] | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
