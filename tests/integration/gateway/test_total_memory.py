"""The limit on the total memory of all bodies."""

from __future__ import annotations

import contextlib
import gzip
import json

import gateways
import pytest
import serving
from gateways import LIMIT_S, connected, gateway_of

TOTAL = 300_000
LARGE = json.dumps({"x": [1] * 70_000}).encode()  # two of which are too many
SMALL = {"x": [1] * 1000}
JSON = "application/json"


@contextlib.contextmanager
def full(served):
    """A gateway that has a large body in memory: of a request that the model has, and does not respond to."""
    gateways.lingering.clear()
    with (
        gateway_of(served, max_total_body_size=TOTAL) as gateway,
        contextlib.closing(gateway.connection()) as connection,
    ):
        connection.request("POST", "/v1/models/Linger", LARGE)
        assert gateways.lingering.wait(LIMIT_S)
        yield gateway, connection


def test_a_body_without_room_is_refused_before_it_is_sent(served):
    head = f"POST /v1/models/Double HTTP/1.1\r\nhost: a\r\ncontent-length: {len(LARGE)}\r\nexpect: 100-continue\r\n\r\n"
    with full(served) as (gateway, _), connected(gateway, head.encode()) as connection:
        response = connection.recv(1 << 16)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in response
    assert b"connection: close\r\n" in response
    assert b"max_total_body_size" in response


@pytest.mark.parametrize("path", ["/v1/models/Double", "/v2/models/Double/infer", "/v1/chat/completions"])
def test_all_endpoints_refuse_it(served, path):
    with full(served) as (gateway, _):
        assert gateway.send("POST", path, LARGE, content_type=JSON).status == 503


def test_a_body_of_chunks_is_refused_when_it_gets_too_large(served):
    with full(served) as (gateway, _):
        chunks = (LARGE[at : at + 1000] for at in range(0, len(LARGE), 1000))
        assert gateway.send("POST", "/v1/models/Double", chunks, content_type=JSON).status == 503


def test_a_body_counts_with_its_size_when_decompressed(served):
    with full(served) as (gateway, _):
        assert gateway.post("Double", gzip.compress(LARGE), content_encoding="gzip").status == 503


def test_small_bodies_are_served(served):
    with full(served) as (gateway, _):
        assert gateway.post("Double", SMALL).status == 200


def test_a_finished_request_frees_its_room(served):
    with full(served) as (gateway, connection):
        connection.close()
        serving.wait_until(lambda: gateway.post("Double", LARGE, content_type=JSON).status == 200)
        for _ in range(3):
            assert gateway.post("Double", LARGE, content_type=JSON).status == 200


def test_a_single_body_may_be_larger(served):
    with gateway_of(served, max_total_body_size=1000) as gateway:
        for _ in range(2):
            assert gateway.post("Double", LARGE, content_type=JSON).status == 200
