"""A connection to a server in asyncio."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from typing import cast

from pytriton.client.core.connecting import keep_alive
from pytriton.client.core.http.api import Response
from pytriton.client.core.http.connection import LostError
from pytriton.client.core.http.messages import BUFFER_BYTES, ResponseReader
from pytriton.client.core.tensors import Content

_SLICE_BYTES = 262144
"""The bytes of a large request that are written at once: asyncio copies what the socket does not accept."""


class AsyncioConnection(asyncio.BufferedProtocol):
    """A connection that carries one request at a time; asyncio notifies it of events."""

    def __init__(self) -> None:
        """Does not connect yet."""
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._reader: ResponseReader | None = None
        self._responded: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        self._was_lost = False
        self._poll = select.poll()

    def is_alive(self) -> bool:
        """Returns whether an idle connection can be used: the server has neither closed it nor sent anything."""
        return not self._was_lost and not self._poll.poll(0)

    async def exchange(self, parts: Sequence[Content]) -> tuple[Response, bool]:
        """Sends a request and receives the response.

        Args:
            parts: The request.

        Returns:
            The response, and whether the connection can be used again.

        Raises:
            LostError: The connection broke.
            Exception: The response is not HTTP; see `messages.is_malformed`.
        """
        reader = self._reader = ResponseReader(self._buffer)
        self._responded = asyncio.get_running_loop().create_future()
        try:
            if self._was_lost:
                self._fail(None)
            else:
                await self._write(parts, self._responded)
            await self._responded
        finally:
            self._reader = None
            reader.close()
        assert reader.response is not None
        return reader.response, reader.is_reusable and not self._was_lost

    def abort(self) -> None:
        """Closes the connection at once, and ends the wait for a response."""
        self._was_lost = True
        if self._responded is not None and not self._responded.cancel() and not self._responded.cancelled():
            self._responded.exception()  # marks it as retrieved
        if self._transport is not None:
            self._transport.abort()

    async def _write(self, parts: Sequence[Content], responded: asyncio.Future[None]) -> None:
        assert self._transport is not None
        if sum(map(len, parts)) <= BUFFER_BYTES:
            self._transport.write(b"".join(parts))
            return
        for part in parts:
            rest = memoryview(part)
            while rest:
                self._transport.write(rest[:_SLICE_BYTES])
                rest = rest[_SLICE_BYTES:]
                if self._is_paused:
                    self._writable = asyncio.get_running_loop().create_future()
                    await self._writable
                if responded.done():  # early: the server does not need the rest
                    return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        connected = transport.get_extra_info("socket")
        self._poll.register(connected, select.POLLIN)
        keep_alive(connected)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        reader = self._reader
        return self._buffer if reader is None or reader.response is not None else reader.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._reader is None or self._reader.response is not None:  # not requested
            self.abort()
            return
        try:
            if self._reader.received(nbytes):
                self._finish()
        except Exception as error:
            self._fail(error)

    def eof_received(self) -> None:
        """See asyncio."""
        self._was_lost = True
        if self._reader is not None and self._reader.ended():
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._was_lost = True
        self._fail(None, error)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._is_paused = False
        self._wake_writer()

    def _finish(self) -> None:
        if self._responded is not None and not self._responded.done():
            self._responded.set_result(None)
        self._wake_writer()

    def _fail(self, error: Exception | None, cause: Exception | None = None) -> None:
        if self._responded is not None and not self._responded.done():
            if error is None:
                error = LostError(str(cause or "it was closed"))
                error.has_begun = self._reader is not None and self._reader.has_begun
            self._responded.set_exception(error)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
