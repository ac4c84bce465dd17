"""Streams as server-sent events and as newline-delimited JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json

import gateways
import pytest
from gateways import EVENTS, LIMIT_S, Client, events_of, gateway_of, running
from serving import Background

from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer


def test_lines_are_the_default(gateway):
    response = gateway.post("Count", {"n": 3})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in response.body.splitlines()] == [{"i": 0}, {"i": 1}, {"i": 2}]


def test_events(gateway):
    response = gateway.post("Count", {"n": 2}, accept=EVENTS)
    assert response.headers["content-type"] == EVENTS
    assert list(events_of(response.body)) == [("message", {"i": 0}), ("message", {"i": 1}), ("done", {})]


def test_an_empty_stream(gateway):
    assert list(events_of(gateway.post("Count", {"n": 0}, accept=EVENTS).body)) == [("done", {})]


def test_an_error_within_a_stream(gateway):
    events = list(events_of(gateway.post("Count", {"n": 101}, accept=EVENTS).body))
    assert [kind for kind, _ in events] == ["message"] * 100 + ["error", "done"]
    assert "that is a hundred" in events[100][1]["error"]["message"]


def test_a_model_that_is_not_decoupled_streams_its_only_response(gateway):
    events = list(events_of(gateway.post("Double", {"x": [1]}, accept=EVENTS).body))
    assert events == [("message", {"y": [2]}), ("done", {})]
    assert gateway.post("Fail", {"x": [1]}, accept=EVENTS).status == 500


def test_an_event_source_has_its_inputs_in_the_url(gateway):
    events = list(events_of(gateway.get("/v1/models/Count?n=2", accept=EVENTS).body))
    assert events == [("message", {"i": 0}), ("message", {"i": 1}), ("done", {})]
    events = list(events_of(gateway.get("/v1/models/Greet?who=Zo%C3%AB", accept=EVENTS).body))
    assert events[0] == ("message", {"text": "hello Zoë"})
    assert gateway.get("/v1/models/Count?n=a", accept=EVENTS).status == 400
    assert gateway.get("/v1/models/Count?m=1", accept=EVENTS).status == 422


def test_a_client_that_disconnects_cancels_its_request(served):
    gateways.cancelled.clear()
    with gateway_of(served) as gateway, contextlib.closing(gateway.connection()) as connection:
        connection.request("POST", "/v1/models/Wait", b'{"x": [1]}')
        assert json.loads(connection.getresponse().readline()) == {"y": [1]}
        connection.close()
        assert gateways.cancelled.wait(LIMIT_S)


@pytest.mark.parametrize("accept", ["application/json", EVENTS])
def test_a_client_that_disconnects_from_another_server_cancels_its_request(served, accept):
    gateways.cancelled.clear()
    gateways.lingering.clear()
    with running(Gateway(served)) as client, contextlib.closing(client.connection()) as connection:
        connection.request("POST", "/v1/models/Linger", b'{"x": [1]}', {"accept": accept})
        assert gateways.lingering.wait(LIMIT_S)
        connection.close()
        assert gateways.cancelled.wait(LIMIT_S)
        assert client.post("Double", {"x": [1]}).json() == {"y": [2]}


def test_a_stream_without_a_response_ends_when_the_gateway_is_about_to_stop(served):
    gateways.cancelled.clear()
    gateways.lingering.clear()
    config = GatewayConfig(port=0)
    server = GatewayServer(Gateway(served, config), config)
    server.start()
    with contextlib.closing(Client(server.url).connection()) as connection:
        connection.request("POST", "/v1/models/Linger", b'{"x": [1]}', {"accept": EVENTS})
        assert gateways.lingering.wait(LIMIT_S)
        stopping = Background(lambda: server.stop(3))
        response = connection.getresponse()
        assert (response.status, json.load(response)) == (503, {"error": {"message": "The gateway is stopping."}})
        assert gateways.cancelled.wait(LIMIT_S)
        assert stopping.finish().result == 0


@pytest.mark.parametrize("continue_traces", [True, False])
def test_a_client_that_disconnects_before_the_response_cancels_its_request(served, caplog, continue_traces):
    gateways.cancelled.clear()
    gateways.lingering.clear()
    settings = {"continue_traces": continue_traces}
    with gateway_of(served, **settings) as gateway, contextlib.closing(gateway.connection()) as connection:
        connection.request("POST", "/v1/models/Linger", b'{"x": [1]}')
        assert gateways.lingering.wait(LIMIT_S)
        connection.close()
        assert gateways.cancelled.wait(LIMIT_S)
        assert gateway.post("Double", {"x": [1]}).json() == {"y": [2]}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def lines(host, port, n):
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps({"n": n}).encode()
    head = f"POST /v1/models/Count HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    data = await reader.read()
    writer.close()
    assert data.endswith(b"0\r\n\r\n")
    return data.count(b'{"i":')


async def abandoned(host, port):
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /v1/models/Count?n=50 HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n")
    await writer.drain()
    return writer


def test_many_streams_that_are_abandoned_at_once(gateway):
    host, port = gateway.url.removeprefix("http://").split(":")

    async def abandon():
        for writer in await asyncio.gather(*(abandoned(host, port) for _ in range(450))):
            writer.transport.abort()

    for _ in range(3):
        asyncio.run(abandon())
    assert asyncio.run(lines(host, port, 50)) == 50
    assert gateway.post("Double", {"x": [1]}).json() == {"y": [2]}


def test_many_streams_lose_nothing(gateway):
    host, port = gateway.url.removeprefix("http://").split(":")

    async def main():
        return await asyncio.gather(*(lines(host, int(port), 50) for _ in range(300)))

    assert asyncio.run(main()) == [50] * 300
