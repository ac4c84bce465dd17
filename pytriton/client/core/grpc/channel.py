"""Channels of gRPC, blocking and in asyncio."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pytriton.client.core.connecting import SILENCE_S, ConnectOptions
from pytriton.client.core.grpc.api import MAX_MESSAGE_BYTES
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.utils.hosts import is_loopback

_PING_PAUSE_S = 600
_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Makes a new channel connect at once, without the back-off of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
    # With keepalive, gRPC limits how long a host may acknowledge nothing. Its own pings are rarer than servers allow.
    ("grpc.keepalive_timeout_ms", SILENCE_S * 1000),
    ("grpc.keepalive_time_ms", _PING_PAUSE_S * 1000),
]


def channel_options(url: TritonUrl, connect_timeout_s: float = math.inf) -> list[tuple[str, int]]:
    """Returns gRPC's options for a channel to a server."""
    options = list(_OPTIONS)
    if connect_timeout_s < math.inf:
        options.append(("grpc.min_reconnect_backoff_ms", round(connect_timeout_s * 1000)))  # limits each attempt
    # gRPC would connect even to this machine through the proxy that http_proxy names.
    if is_loopback(url.hostname):
        options.append(("grpc.enable_http_proxy", 0))
    return options


class Channel:
    """A connection to a server; callers encode and decode its messages.

    Args:
        url: The server's URL.
        options: How to connect.
        library: ``grpc``, or ``grpc.aio`` for the running event loop.

    Attributes:
        unary: Returns the method of a path, which has one request and one response.
        stream: Returns the method of a path, which has a stream of requests and one of responses.
        close: Closes the connection; in asyncio, returns an awaitable.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """

    def __init__(self, url: TritonUrl, options: ConnectOptions, library: Any) -> None:
        """Connects on first use."""
        arguments = channel_options(url, options.timeout_s)
        if url.secure:
            channel = library.secure_channel(url.without_scheme, _credentials(options.tls), options=arguments)
        else:
            channel = library.insecure_channel(url.without_scheme, options=arguments)
        self.unary = functools.cache(channel.unary_unary)
        self.stream = channel.stream_stream
        self.close = channel.close


def blocking_channel(url: TritonUrl, options: ConnectOptions) -> Channel:
    """Returns a channel for threads; see `Channel`."""
    return Channel(url, options, grpc)


def asyncio_channel(url: TritonUrl, options: ConnectOptions) -> Channel:
    """Returns a channel for the running event loop; see `Channel`."""
    return Channel(url, options, grpc.aio)


def _credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.root_certificates),
        private_key=_read(tls.private_key or tls.certificate_chain),
        certificate_chain=_read(tls.certificate_chain),
    )


def _read(file: str | os.PathLike[str] | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
