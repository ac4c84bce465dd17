"""HTTP messages: the head of a request, and a reader of responses, both without I/O."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pytriton.client.core.http.api import Call, Response
from pytriton.client.core.tensors import Content
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.url import TritonUrl

BUFFER_BYTES = 65536
"""The size of the buffer for a response's head; a large body has its own."""
_ALIGNMENT = 64
_OK = 200
# They determine where a request ends.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Parser(Protocol):
    """The part of httptools' parsers that is used here."""

    def feed_data(self, data: memoryview) -> None:
        """Parses data, and calls the reader."""

    def get_status_code(self) -> int:
        """Returns the status of the message."""

    def should_keep_alive(self) -> bool:
        """Returns whether the connection remains after this message."""


class RequestHead:
    """The first bytes of requests to a server.

    Args:
        url: The server's URL.
    """

    def __init__(self, url: TritonUrl) -> None:
        """Composes the common parts of all requests."""
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        self._path = url.path
        # Compression would take longer than it saves.
        self._common = {"Host": f"{host}:{url.port}", "User-Agent": "pytriton", "Accept-Encoding": "identity"}
        self._common_lines = _lines(self._common)

    def of(self, call: Call, headers: Mapping[str, str], size: int) -> bytes:
        """Composes the head of a request.

        Args:
            call: The request.
            headers: The user's headers, which take precedence.
            size: The length of the body.

        Raises:
            PyTritonClientValueError: A header cannot be sent.
        """
        if headers:
            _check(headers)
            given = {name.lower() for name in headers}
            ours = {**self._common, **call.headers}
            lines = _lines({name: value for name, value in ours.items() if name.lower() not in given})
            lines += _lines(headers)
        else:
            lines = self._common_lines + _lines(call.headers)
        if call.verb == "POST":
            lines += f"Content-Length: {size}\r\n"
        return f"{call.verb} {self._path}/{call.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


class ResponseReader:
    """Reads a response from `buffer`, into which the caller receives.

    The head is parsed by httptools, and so is a body in chunks. A body of known size that does not arrive at once is
    received into its final place.

    Args:
        buffer: Where to receive the head; the next reader of the connection may reuse it.

    Attributes:
        buffer: Where to receive next.
        has_begun: Whether anything was received.
        response: The response, when it is complete.
        is_reusable: Whether the connection remains afterwards.
    """

    def __init__(self, buffer: memoryview) -> None:
        """Starts before the first byte."""
        self.buffer = buffer
        self.has_begun = False
        self.response: Response | None = None
        self.is_reusable = False
        self._first = buffer
        self._parser: Parser = _parser_class()(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._has_head = False
        self._body: memoryview | None = None

    def received(self, count: int) -> bool:
        """Reads the bytes that were received into the buffer; returns whether the response is complete.

        Args:
            count: How many.

        Raises:
            Exception: It is not HTTP; see `is_malformed`.
        """
        self.has_begun = True
        if self._body is None:
            self._parser.feed_data(self._first[:count])
            if self._has_head and self.response is None:
                self._prepare_body()
            return self.response is not None
        self.buffer = self.buffer[count:]
        if not self.buffer:
            self._complete(self._body.toreadonly())
        return self.response is not None

    def ended(self) -> bool:
        """Reads the end of the connection; returns whether the response is complete with that."""
        is_unlimited = b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
        if self.response is None and self._has_head and is_unlimited:
            self._complete(b"".join(self._chunks))
        self.is_reusable = False
        return self.response is not None

    def close(self) -> None:
        """Ends reading, complete or not.

        The parser refers to this reader: without this, their memory, and the response's, would be kept until Python's
        garbage collector runs, which counts objects, not bytes.
        """
        del self._parser

    def on_message_begin(self) -> None:
        """See httptools."""
        if self.response is not None:  # another one was not requested
            self.is_reusable = False
        self._has_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if self.response is None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        if self.response is None:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        if self.response is not None:
            return
        if self._parser.get_status_code() < _OK:  # an interim response
            self._headers.clear()
            self._has_head = False
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._complete(self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks))

    def _prepare_body(self) -> None:
        """Allocates memory for a body of known size, to receive the rest into it."""
        if b"transfer-encoding" in self._headers or b"content-length" not in self._headers:
            return
        size = int(self._headers[b"content-length"])
        begun = b"".join(self._chunks)
        try:
            self._body = _aligned(size, int(self._headers.get(b"inference-header-content-length", 0)))
        except MemoryError:
            raise ValueError(f"there is no memory for its body of {size} bytes") from None
        self._body[: len(begun)] = begun
        self.buffer = self._body[len(begun) :]
        self.is_reusable = self._parser.should_keep_alive()

    def _complete(self, body: Content) -> None:
        self.response = Response(self._parser.get_status_code(), self._headers, body)


def is_malformed(error: Exception) -> bool:
    """Returns whether an error means that a response is not HTTP."""
    import httptools

    return isinstance(error, httptools.HttpParserError | httptools.HttpParserUpgrade | ValueError)


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        # Anything else could end the line, and inject headers or another request.
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(str(value))):
            raise PyTritonClientValueError(
                f"Unsupported HTTP header: {name!r}; its name or its value has characters that HTTP does not allow."
            )
        if name.lower() in _FRAMING:
            raise PyTritonClientValueError(
                f"Unsupported HTTP header: {name!r}; the client itself sets where a request ends."
            )


def _aligned(size: int, position: int) -> memoryview:
    """Allocates memory in which the byte at a position is aligned for any datatype."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -(memory.__array_interface__["data"][0] + position) % _ALIGNMENT
    return memory[start : start + size].data


@functools.cache
def _parser_class() -> Any:
    import httptools

    return httptools.HttpResponseParser
