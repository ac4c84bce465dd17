from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.protocol import ResponseTransport, protocol_of

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


@pytest.fixture
def connection() -> Any:
    return RecordingTransport()


@pytest.mark.parametrize("body", [b"{}", b"HTTP/1.1 \r\n\r\n"])
def test_the_headers_of_a_response_are_sent_with_its_body(connection: Any, body: bytes) -> None:
    transport = ResponseTransport(connection, connection.close)
    transport.write(HEAD)
    transport.write(body)
    transport.write(b"more")
    assert connection.sent == [HEAD + body, b"more"]


def test_nothing_is_sent_to_a_disconnected_client(connection: Any) -> None:
    transport = ResponseTransport(connection, connection.close)
    transport.write(HEAD)
    connection.closed = True
    transport.write(b"{}")
    transport.write(b"more")
    assert connection.sent == []


def test_headers_without_a_body_are_sent(connection: Any) -> None:
    transport = ResponseTransport(connection, connection.close)
    transport.write(HEAD)
    transport.flush()
    transport.flush()
    transport.write(b"next")
    assert connection.sent == [HEAD, b"next"]


def test_an_interim_response_is_sent_at_once(connection: Any) -> None:
    ResponseTransport(connection, connection.close).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert connection.sent == [b"HTTP/1.1 100 Continue\r\n\r\n"]


def test_headers_are_sent_before_the_connection_is_closed(connection: Any) -> None:
    transport = ResponseTransport(connection, connection.close)
    transport.write(HEAD)
    transport.close()
    assert (connection.sent, connection.closed, transport.is_closing()) == ([HEAD], True, True)


def test_other_attributes_are_those_of_the_connection(connection: Any) -> None:
    assert ResponseTransport(connection, connection.close).get_extra_info("peername") == "peername"


async def respond(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body only if it is to be echoed."""
    message = await receive() if scope["path"] == "/echo" else {"body": b"ok", "more_body": False}
    body = message["body"] + b"+" * message["more_body"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def exchanged(*parts: bytes, keep_alive_s: int = 5, max_body_size: int = 1000) -> list[bytes]:
    """Sends the parts one by one, and returns the bodies of the responses until the connection is closed."""
    config = uvicorn.Config(respond, ws="none", log_config=None, lifespan="off")
    protocol = protocol_of(GatewayConfig(max_body_size=max_body_size, keep_alive_timeout_s=keep_alive_s))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        bodies = []
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)  # that the parts may come one by one
        if keep_alive_s > 1:
            writer.write_eof()
        for response in (await asyncio.wait_for(reader.read(), 20)).split(b"HTTP/1.1 200 OK\r\n")[1:]:
            bodies.append(response.partition(b"\r\n\r\n")[2])
        writer.close()
    return bodies


def test_requests_whose_responses_have_no_body() -> None:
    request = b"HEAD /now HTTP/1.1\r\nhost: h\r\n\r\n"
    assert asyncio.run(exchanged(request, request)) == [b"", b""]


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def test_a_body_that_comes_in_parts_reaches_the_application_as_a_whole() -> None:
    request = post("/echo", b"0123456789")
    assert asyncio.run(exchanged(request[:30], request[30:-6], request[-6:-2], request[-2:])) == [b"0123456789"]


def test_pipelined_requests_are_served_in_order() -> None:
    requests = b"".join(post("/echo", str(number).encode()) for number in range(5))
    assert asyncio.run(exchanged(requests)) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_follows_a_request_does_not_replace_its_response() -> None:
    assert asyncio.run(exchanged(post("/echo", b"0") + b"no HTTP\r\n\r\n")) == [b"0"]


@pytest.mark.parametrize("rest", [b"", b"no HTTP\r\n\r\n", b"GET /now HTTP/1.1\r\na: " + b"b" * (1 << 16)])
def test_few_pipelined_requests_are_kept(rest: bytes) -> None:
    requests = b"".join(post("/echo", str(number).encode()) for number in range(1000))
    bodies = asyncio.run(exchanged(requests + rest, rest))
    assert 1 <= len(bodies) <= 100
    assert bodies == [str(number).encode() for number in range(len(bodies))]


def test_a_too_large_body_is_not_kept() -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    [body] = asyncio.run(exchanged(head, chunk, chunk, chunk, chunk, b"0\r\n\r\n", max_body_size=250))
    assert body == b"x" * 300 + b"+"


@pytest.mark.parametrize("path", ["/echo", "/now"])
def test_a_connection_without_requests_is_closed(path: str) -> None:
    request = post(path, b"x" * 40)
    assert len(asyncio.run(exchanged(request[:-20], request[-20:], keep_alive_s=1))) == 1


def test_a_body_that_the_application_does_not_read_is_not_kept() -> None:
    requested, connections = asyncio.Event(), []

    async def respond_with_size(scope: Any, receive: Any, send: Any) -> None:
        await requested.wait()
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"%8d" % size})

    config = uvicorn.Config(respond_with_size, ws="none", log_config=None, lifespan="off")
    protocol = protocol_of(GatewayConfig())

    def connect() -> Any:
        connections.append(protocol(config, ServerState(), {}))
        return connections[-1]

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(post("/", b"x" * 10_000_000))
            while not (connections and connections[0].flow.read_paused):
                await asyncio.sleep(0)
            assert len(connections[0].cycle.body) < 1 << 20
            requested.set()
            assert (await reader.readuntil(b"10000000")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(asyncio.wait_for(main(), 20))
