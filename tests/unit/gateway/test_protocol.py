from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytriton.gateway.protocol import HeadHoldingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class RecordingTransport:
    """Records what each system call would send."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, parts: Any) -> None:
        self.sent.append(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return name


async def transports() -> tuple[RecordingTransport, HeadHoldingTransport]:
    connection: Any = RecordingTransport()
    return connection, HeadHoldingTransport(connection, asyncio.get_running_loop())


@pytest.mark.parametrize("body", [b"{}", b"HTTP/1.1 \r\n\r\n"])
def test_the_head_of_a_response_is_sent_with_its_body(body: bytes) -> None:
    async def respond() -> list[bytes]:
        connection, transport = await transports()
        transport.write(HEAD)
        transport.write(body)
        await asyncio.sleep(0)
        return connection.sent

    assert asyncio.run(respond()) == [HEAD + body]


def test_a_head_does_not_wait_for_a_body_that_is_not_there_yet() -> None:
    async def respond() -> list[bytes]:
        connection, transport = await transports()
        transport.write(HEAD)
        await asyncio.sleep(0)
        transport.write(b"first")
        transport.write(b"second")
        return connection.sent

    assert asyncio.run(respond()) == [HEAD, b"first", b"second"]


def test_a_head_is_sent_before_the_connection_is_closed() -> None:
    async def respond() -> tuple[list[bytes], bool, bool]:
        connection, transport = await transports()
        transport.write(HEAD)
        transport.close()
        await asyncio.sleep(0)
        return connection.sent, connection.closed, transport.is_closing()

    assert asyncio.run(respond()) == ([HEAD], True, True)


def test_all_else_is_the_connection_s_own() -> None:
    async def name() -> Any:
        _, transport = await transports()
        return transport.get_extra_info("peername")

    assert asyncio.run(name()) == "peername"
