"""Clients that are slower than a model, and the data that waits for them."""

from __future__ import annotations

import contextlib
import json

import gateways
import numpy as np
import pytest
import serving
from gateways import EVENTS, LIMIT_S, connected, events_of, gateway_of, received, request, running

from pytriton.decorators import batch
from pytriton.gateway import Gateway, GatewayConfig, OpenAIChat
from pytriton.model_config import ModelConfig, Tensor

BACKLOG = 1 << 20
SIZE = 16_000  # numbers, or characters, of a step
steps: list[int] = []


@batch
def flood(x):
    """Sends as much as the client accepts."""
    steps.clear()
    try:
        while True:
            steps.append(len(steps))
            yield {"y": np.full((1, SIZE), len(steps), np.float32)}
    finally:
        gateways.cancelled.set()


@batch
def write_endlessly(messages):
    steps.clear()
    try:
        while True:
            steps.append(len(steps))
            yield {"text": np.array([[b"x" * SIZE]])}
    finally:
        gateways.cancelled.set()


@pytest.fixture(scope="module")
def flooding(served):
    endless = ModelConfig(max_batch_size=1, decoupled=True)
    served.bind("Flood", flood, gateways.NUMBERS, gateways.DOUBLED, config=endless)
    messages, text = Tensor(name="messages", dtype=bytes, shape=(1,)), Tensor(name="text", dtype=bytes, shape=(1,))
    served.bind("Babble", write_endlessly, [messages], [text], config=endless)
    return served


def chunks_of(response):
    """The body of a chunked response."""
    rest = response.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


NUMBERS = request("/v1/models/Flood", b'{"x": [1]}', "connection: close\r\n")
SENT_EVENTS = request("/v1/models/Flood", b'{"x": [1]}', f"accept: {EVENTS}\r\nconnection: close\r\n")
CHAT = {"model": "Babble", "stream": True, "messages": [{"role": "user", "content": "a"}]}
SENT_CHAT = request("/v1/chat/completions", json.dumps(CHAT).encode(), "connection: close\r\n")


@pytest.mark.parametrize("sent", [NUMBERS, SENT_EVENTS, SENT_CHAT], ids=["lines", "events", "chat"])
def test_a_model_is_cancelled_if_too_much_waits_for_a_stalled_client(flooding, sent):
    gateways.cancelled.clear()
    settings = {"max_stream_backlog": BACKLOG, "openai": [OpenAIChat("Babble")]}
    with gateway_of(flooding, **settings) as gateway, connected(gateway, sent) as connection:
        assert gateways.cancelled.wait(LIMIT_S)
        assert gateway.post("Double", {"x": [1]}).json() == {"y": [2]}
        taken = chunks_of(received(connection))
    if sent is NUMBERS:
        *lines, last = map(json.loads, taken.splitlines())
        assert [line["y"][0] for line in lines] == list(range(1, len(lines) + 1))
    elif sent is SENT_EVENTS:
        *_, (_, last), end = events_of(taken)
        assert end == ("done", {})
    else:
        last = json.loads(taken.strip().rpartition(b"data: ")[2])
    assert "max_stream_backlog" in last["error"]["message"]
    assert len(taken) < 16 * BACKLOG  # of which the system holds some
    assert len(steps) * SIZE < 100 * BACKLOG  # of which some were dropped


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_model_is_cancelled_in_a_mounted_application_as_well(flooding, is_elsewhere):
    gateways.cancelled.clear()
    server = [f"127.0.0.1:{flooding.config.grpc_port}"] if is_elsewhere else flooding
    app = Gateway(server, GatewayConfig(max_stream_backlog=BACKLOG))
    with running(app) as gateway, connected(gateway, NUMBERS) as connection:
        assert gateways.cancelled.wait(LIMIT_S)
        assert b"max_stream_backlog" in received(connection)[-1000:]


def test_a_stream_ends_when_all_memory_for_bodies_is_in_use(flooding):
    gateways.cancelled.clear()
    with (
        gateway_of(flooding, max_total_body_size=BACKLOG) as gateway,
        connected(gateway, NUMBERS) as connection,
    ):
        assert gateways.cancelled.wait(LIMIT_S)
        assert b"max_stream_backlog" in received(connection)[-1000:]


def test_one_step_may_be_larger_than_the_limit(flooding):
    with gateway_of(flooding, max_stream_backlog=1000) as gateway:
        [line] = gateway.post("Double", {"x": [1] * 10_000}, accept="application/x-ndjson").body.splitlines()
    assert json.loads(line) == {"y": [2.0] * 10_000}


@contextlib.contextmanager
def unread_response(gateway):
    """A client that does not read a large response, which the model has returned."""
    numbers = json.dumps({"x": [1.5] * 2_000_000}).encode()
    gateways.sizes.clear()
    with connected(gateway, request("/v1/models/Double", numbers)) as connection:
        serving.wait_until(lambda: gateways.sizes)
        yield connection


def test_an_unread_response_counts_as_in_flight(served):
    with gateway_of(served, max_requests=1) as gateway:
        with unread_response(gateway) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert gateway.post("Double", {"x": [1]}).status == 503
        serving.wait_until(lambda: gateway.post("Double", {"x": [1]}).status == 200)


def test_an_unread_response_counts_as_memory(served):
    large = {"x": [1] * 50_000}
    with gateway_of(served, max_total_body_size=16 << 20) as gateway:
        with unread_response(gateway) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert gateway.post("Double", large).status == 503
            assert gateway.post("Double", {"x": [1]}).status == 200
        serving.wait_until(lambda: gateway.post("Double", large).status == 200)
