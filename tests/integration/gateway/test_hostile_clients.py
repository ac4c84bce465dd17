"""Clients that break HTTP's rules, or stretch them."""

from __future__ import annotations

import json
import select
import socket

import gateways
import pytest
import serving
from gateways import LIMIT_S, connected, gateway_of, received, request

from pytriton.gateway import create_key

READ_TIMEOUT_S = 0.4


def is_reset(connection):
    poll = select.poll()
    poll.register(connection, 0)  # of errors, it tells anyway
    return bool(poll.poll(0))


def test_a_client_that_does_not_read_its_response_is_disconnected(served):
    numbers = json.dumps({"x": [1.5] * 2_000_000}).encode()
    with (
        gateway_of(served, read_timeout_s=READ_TIMEOUT_S) as gateway,
        connected(gateway, request("/v1/models/Double", numbers)) as connection,
    ):
        serving.wait_until(lambda: is_reset(connection))


def test_a_client_that_does_not_read_its_stream_is_disconnected(served):
    gateways.release.clear()
    gateways.cancelled.clear()
    numbers = json.dumps({"x": [1.5] * 100_000}).encode()
    with (
        gateway_of(served, read_timeout_s=READ_TIMEOUT_S) as gateway,
        connected(gateway, request("/v1/models/Wait", numbers)) as connection,
    ):
        assert gateways.cancelled.wait(LIMIT_S)
        serving.wait_until(lambda: is_reset(connection))


def test_a_client_that_reads_slowly_gets_its_whole_response(served):
    numbers = json.dumps({"x": [1.5] * 500_000}).encode()
    with (
        gateway_of(served, read_timeout_s=READ_TIMEOUT_S) as gateway,
        connected(gateway, request("/v1/models/Double", numbers, "connection: close\r\n")) as connection,
    ):
        response = received(connection)
    assert json.loads(response.partition(b"\r\n\r\n")[2]) == {"y": [3.0] * 500_000}


@pytest.mark.parametrize("head", ["", "expect: 100-continue\r\n", "x-api-key: wrong\r\n"])
def test_a_client_without_a_key_need_not_send_its_body(served, tmp_path, head):
    create_key(tmp_path / "keys.json", "alice")
    hidden = request("/health/live", method="GET")
    beginning = request("/v1/models/Double", b" " * (1 << 20), head)[:200]
    with (
        gateway_of(served, api_keys=tmp_path / "keys.json") as gateway,
        connected(gateway, beginning) as connection,
    ):
        assert connection.recv(12) == b"HTTP/1.1 401"
        connection.sendall(hidden)
        connection.shutdown(socket.SHUT_WR)
        rest = received(connection)
    assert b"connection: close" in rest
    assert b"HTTP/1.1" not in rest


def test_requests_after_refused_headers_are_not_served(served):
    with gateway_of(served, max_header_size=2000) as gateway:
        large = request("/v1/models", head=f"x: {'y' * 3000}\r\n")
        with connected(gateway, large + request("/health/live", method="GET")) as connection:
            connection.shutdown(socket.SHUT_WR)
            response = received(connection)
        assert response.startswith(b"HTTP/1.1 431 ")
        assert response.count(b"HTTP/1.1") == 1


def test_a_client_may_send_all_of_a_refused_body_before_it_reads(served):
    with gateway_of(served, max_body_size=1000) as gateway:
        assert gateway.post("Double", b" " * (16 << 20)).status == 413
        chunks = iter([b" " * (1 << 20)] * 16)
        assert gateway.send("POST", "/v1/models/Double", chunks).status == 413


def test_a_body_of_many_small_chunks(gateway):
    body = json.dumps({"x": [1] * 20_000}).encode()
    head = b"POST /v1/models/Double HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with connected(gateway, head + chunks + b"0\r\n\r\n") as connection:
        assert json.loads(received(connection).partition(b"\r\n\r\n")[2]) == {"y": [2.0] * 20_000}


def test_a_client_that_disconnects_before_its_first_response(gateway):
    gateways.lingering.clear()
    gateways.cancelled.clear()
    first = request("/v1/models/Linger", b'{"x": [1]}')
    with connected(gateway, first + request("/health/live", method="GET")):
        assert gateways.lingering.wait(LIMIT_S)
    assert gateways.cancelled.wait(LIMIT_S)


@pytest.mark.parametrize("begin", [b"0\r\nx: ", b"0\r\nx: y\r\n", b"1;"], ids=["trailer", "trailers", "extension"])
def test_trailers_and_chunk_extensions_are_limited(gateway, begin):
    head = b"POST /v1/models/Double HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
    more = b"x: y\r\n" * 10_000 if begin.endswith(b"\r\n") else b"y" * 60_000
    with connected(gateway, head + begin) as connection, pytest.raises(ConnectionError):
        for _ in range(1000):
            connection.sendall(more)


CHUNKED = b"POST /v1/models/Double HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("trailer", [b"host: b", b"origin: https://b", b"x-request-id: b", b"content-encoding: gzip"])
def test_trailers_do_not_replace_headers(gateway, trailer):
    body = b'A\r\n{"x": [1]}\r\n0\r\n'
    with connected(gateway, CHUNKED + body + trailer + b"\r\n\r\n") as connection:
        response = received(connection)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: b\r\n" not in response


def test_a_body_that_is_not_http_is_refused(gateway):
    with connected(gateway, CHUNKED + b"ZZ\r\n") as connection:
        response = received(connection)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.endswith(b'{"error":{"message":"Invalid HTTP request received."}}')


@pytest.mark.parametrize(
    "refused", [CHUNKED + b"ZZ\r\n", b"GET / HTTP/1.1\r\n" + b"x:\r\n" * 1000], ids=["chunk", "head"]
)
def test_a_refused_request_does_not_take_the_response_of_an_earlier_one(gateway, refused):
    first = request("/v1/models/Sleep", b'{"x": [1]}')
    with connected(gateway, first + refused) as connection:
        responses = received(connection)
    assert responses.startswith(b"HTTP/1.1 200 ")
    assert responses.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "something"])
def test_the_body_of_an_upgrade_request_is_not_parsed_as_a_request(gateway, protocol):
    hidden = request("/v1/models/Nobody", method="GET")
    head = f"connection: Upgrade, HTTP2-Settings\r\nupgrade: {protocol}\r\n"
    for body, status in ((b'{"x": [1]}', b"200"), (hidden, b"400")):
        sent = request("/v1/models/Double", body, head)
        with connected(gateway, sent[: -len(body)]) as connection:
            connection.sendall(sent[-len(body) :])
            connection.sendall(request("/health/live", method="GET", head="connection: close\r\n"))
            first, second = received(connection).split(b"HTTP/1.1 ")[1:]
        assert first.startswith(status)
        assert second.startswith(b"200")
        assert second.endswith(b'{"live":true}')


def test_malformed_http_does_not_fill_the_log(gateway, caplog):
    for data in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n"):
        with connected(gateway, data) as connection:
            assert received(connection).startswith(b"HTTP/1.1 400 ")
    assert caplog.records == []


@pytest.mark.parametrize("hosts", [[], ["a", "b"], ["a", "a"]], ids=["none", "two", "twice"])
def test_a_request_that_does_not_name_one_host_is_refused(gateway, hosts):
    fields = "".join(f"Host: {host}\r\n" for host in hosts)
    refused = f"GET /health/live HTTP/1.1\r\n{fields}\r\n".encode()
    with connected(gateway, refused + request("/health/live", method="GET")) as connection:
        responses = received(connection)
    assert responses.startswith(b"HTTP/1.1 400 ")
    assert responses.endswith(b'\r\n\r\n{"error":{"message":"The request must have one Host header."}}')

    with connected(gateway, request("/health/live", method="GET") + refused) as connection:
        responses = received(connection)
    assert responses.startswith(b"HTTP/1.1 200 ")
    assert responses.count(b"HTTP/1.1 ") == 1


def test_a_request_of_http_1_0_may_lack_the_host(gateway):
    with connected(gateway, b"GET /health/live HTTP/1.0\r\n\r\n") as connection:
        assert received(connection).startswith(b"HTTP/1.1 200 ")
