"""Limits, readiness, and how the gateway stops."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import logging
import socket
import threading
import time
import zlib

import gateways
import pytest
import serving
import uvicorn
from gateways import LIMIT_S, gateway_of, running
from starlette.applications import Starlette
from starlette.routing import Mount

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.gateway import Gateway, GatewayConfig, OpenAIChat, OpenAICompletion, OpenAIEmbeddings
from pytriton.gateway.server import GatewayServer
from pytriton.model_config import ModelConfig
from pytriton.server_report import ServerReport
from pytriton.triton import Triton, TritonConfig, TritonLifecyclePolicy


def test_large_bodies_are_refused(served):
    with gateway_of(served, max_body_size=1000) as gateway:
        assert gateway.post("Double", {"x": [1] * 1000}).status == 413
        chunks = iter([b" " * 600] * 2)
        assert gateway.send("POST", "/v1/models/Double", chunks).status == 413
        assert gateway.post("Double", {"x": [1]}).status == 200


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(served, encoding, compress):
    with gateway_of(served, max_body_size=1000) as gateway:
        assert gateway.post("Double", compress(b'{"x": [1]}'), content_encoding=encoding).json() == {"y": [2]}
        bomb = compress(b" " * 1_000_000)
        assert gateway.post("Double", bomb, content_encoding=encoding).status == 413
        assert gateway.post("Double", compress(b'{"x": [1]}')[:-1], content_encoding=encoding).status == 400
        assert gateway.post("Double", b'{"x": [1]}', content_encoding=encoding).status == 400


def test_other_encodings_are_refused(gateway):
    assert gateway.post("Double", {"x": [1]}, content_encoding="br").status == 415


def test_many_samples_are_refused(served):
    with gateway_of(served, max_samples=2) as gateway:
        assert gateway.post("Double", [{"x": [1]}] * 3).status == 413


def test_many_samples_of_a_batch_are_refused(served):
    with gateway_of(served, max_samples=2) as gateway:
        assert gateway.post("Double", {"x": [[1]] * 3}).status == 413
        assert gateway.post("Double", {"x": [[1]] * 2}).json() == {"y": [[2]] * 2}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 5}, "n"),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}, "n"),
        ("/v1/completions", {"prompt": ["a"] * 5}, "prompt"),
        ("/v1/completions", {"prompt": "a", "stop": ["a" * 1001]}, "stop"),
        ("/v1/embeddings", {"input": ["a"] * 5}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_many_texts_are_refused(served, path, body, field, stream):
    declared = [kind("Greet") for kind in (OpenAIChat, OpenAICompletion, OpenAIEmbeddings)]
    with gateway_of(served, max_samples=4, openai=declared) as gateway:
        body = json.dumps(body | {"model": "Greet", "stream": stream})
        response = gateway.send("POST", path, body, content_type="application/json")
        assert (response.status, response.json()["error"]["param"]) == (400, field)


def test_other_requests_are_served_while_a_large_body_is_read(gateway):
    texts = json.dumps([{"who": "x" * 3000}] * 9999 + [{"who": 1}]).encode()  # the last of which is refused
    posting = serving.Background(lambda: gateway.post("Greet", texts, content_type="application/json"))
    began, gaps = time.monotonic(), []
    while posting.ended is None:
        asked = time.monotonic()
        assert gateway.get("/health/live").status == 200
        gaps.append(time.monotonic() - asked)
    assert posting.finish().result.status == 422
    assert max(gaps) < (time.monotonic() - began) / 3


def test_many_requests_at_a_time_are_refused(served):
    with gateway_of(served, max_requests=1) as gateway, contextlib.closing(gateway.connection()) as connection:
        connection.request("POST", "/v1/models/Wait", b'{"x": [1]}')
        connection.getresponse().readline()
        refused = gateway.post("Double", {"x": [1]})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")


def test_refused_requests_count_in_the_statistics_of_the_model(served):
    with gateway_of(served, max_requests=1) as gateway, contextlib.closing(gateway.connection()) as connection:
        assert gateway.post("Double", {"x": [1]}).status == 200
        connection.request("POST", "/v1/models/Wait", b'{"x": [1]}')
        connection.getresponse().readline()
        assert gateway.post("Double", {"x": [1]}).status == 503
        assert gateway.get("/status").status == 503
        connection.close()
        serving.wait_until(lambda: gateway.get("/status").status == 200)
        [double] = [model for model in gateway.get("/status").json()["models"] if model["name"] == "Double"]
        assert (double["requests"], double["failed"]) == (2, 1)


def test_headers_of_responses(gateway):
    for path in ("/health/live", "/health/ready", "/", "/v1/models", "/v1/models/Double"):
        response = gateway.send("HEAD", path)
        assert (response.status, response.body) == (200, b"")
        assert int(response.headers["content-length"]) == len(gateway.get(path).body)


def test_time_is_limited(served):
    with gateway_of(served, request_timeout_s=0.2) as gateway:
        gateways.release.clear()
        started = threading.Event()

        def slow(requests):
            started.wait(1)
            return [{"y": request["x"]} for request in requests]

        served.bind("Slow", slow, gateways.NUMBERS, gateways.DOUBLED)
        assert gateway.post("Slow", {"x": [1]}).status == 504
        started.set()


def raw(gateway, data):
    """Sends bytes, and returns all that comes until the connection is closed."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += part
        return received


def error_of(response):
    """The message of a response of JSON, as bytes."""
    return json.loads(response.partition(b"\r\n\r\n")[2])["error"]["message"].encode()


def test_large_headers_are_refused(served):
    with gateway_of(served, max_header_size=2000) as gateway:
        complete = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 3000 + b"\r\n\r\n"
        endless = b"GET /v1/models HTTP/1.1\r\n" + b"x: y\r\n" * 1000
        many = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n" + b"x:\r\n" * 200 + b"\r\n"
        for data, limit in ((complete, b"2000 bytes"), (endless, b"200 headers"), (many, b"200 headers")):
            response = raw(gateway, data)
            assert response.startswith(b"HTTP/1.1 431 ")
            assert b"more than " + limit in error_of(response)
        assert raw(gateway, many.replace(b"x:\r\n", b"connection: close\r\n", 1).replace(b"x:\r\n", b"", 1)).startswith(
            b"HTTP/1.1 200 "
        )
        assert gateway.get("/v1/models", x="a" * 1000).status == 200


def test_unfinished_requests_time_out(served):
    with gateway_of(served, read_timeout_s=0.3) as gateway:
        response = raw(gateway, b"GET /v1/mod")
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.3 s" in error_of(response)
        assert raw(gateway, b"") == b""
        response = raw(gateway, b"POST /v1/models/Double HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        assert response.startswith(b"HTTP/1.1 408 ")
        assert response.count(b"HTTP/1.1 ") == 1
        assert gateway.post("Double", {"x": [1]}).status == 200


def test_a_response_may_take_longer_than_its_request(served):
    with gateway_of(served, read_timeout_s=0.1) as gateway:
        assert gateway.post("Sleep", {"x": [1]}).status == 200


def idle_s(gateway):
    """How long a connection stays open after its request."""
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        began = time.monotonic()
        assert connection.sock.recv(1) == b""
        return time.monotonic() - began


def test_idle_connections_are_closed(served):
    with gateway_of(served, keep_alive_timeout_s=0.3) as gateway:
        assert 0.25 < idle_s(gateway) < LIMIT_S


def test_idle_connections_are_closed_sooner_while_many_are_open(served, monkeypatch):
    monkeypatch.setattr("pytriton.gateway.protocol._SHORT_KEEP_ALIVE_S", 0.3)
    with gateway_of(served, max_connections=1) as gateway:
        assert 0.25 < idle_s(gateway) < LIMIT_S


def test_many_connections_are_refused(served):
    with gateway_of(served, max_connections=2) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
            assert raw(gateway, b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n") == b""
        serving.wait_until(lambda: raw(gateway, b"GET /health/live HTTP/1.0\r\n\r\n"))


def test_the_access_log_has_a_line_for_each_request(served, caplog):
    caplog.set_level(logging.INFO, "pytriton.gateway.access")
    with gateway_of(served, access_log=True) as gateway:
        assert gateway.post("Double", {"x": [1]}).status == 200
        assert gateway.get("/health/ready").status == 200
        assert gateway.get("/nothing%0Ahere").status == 404
    good, bad = (record for record in caplog.records if record.name == "pytriton.gateway.access")
    assert (good.method, good.path, good.client, good.status) == ("POST", "/v1/models/Double", "127.0.0.1", 200)
    assert good.duration_ms > 0
    assert bad.getMessage().startswith(r"GET '/nothing\nhere' from 127.0.0.1: status 404 after ")


def test_no_access_log_by_default(served, caplog):
    caplog.set_level(logging.INFO, "pytriton.gateway.access")
    with gateway_of(served) as gateway:
        assert gateway.post("Double", {"x": [1]}).status == 200
    assert not [record for record in caplog.records if record.name == "pytriton.gateway.access"]


@pytest.mark.parametrize("origin", ["https://example.com", "https://Example.com/"])
def test_cors(served, origin):
    with gateway_of(served, cors_origins=(origin,)) as gateway:
        allowed = gateway.post("Double", {"x": [1]}, origin="https://example.com").headers
        assert allowed["access-control-allow-origin"] == "https://example.com"
        assert (
            "access-control-allow-origin" not in gateway.post("Double", {"x": [1]}, origin="https://other.com").headers
        )


def test_readiness(served):
    config = GatewayConfig(port=0)
    app = Gateway(served, config)
    server = GatewayServer(app, config)
    server.start()
    client = gateways.Client(server.url)
    assert client.get("/health/live").json() == {"live": True}
    assert client.get("/health/ready").status == 200
    app.drain()
    assert client.get("/health/ready").status == 503
    server.stop(5)


def test_a_server_that_hangs_does_not_hold_up_the_gateway(served, monkeypatch):
    entered, released = threading.Event(), threading.Event()
    configuration = ServerReport.configuration

    def hang(*args):
        entered.set()
        released.wait(2 * LIMIT_S)
        return configuration(*args)

    with gateway_of(served) as gateway:
        assert gateway.post("Double", {"x": [1]}).status == 200
        served.bind(
            "New", gateways.double, gateways.NUMBERS, gateways.DOUBLED
        )  # since when all models are looked up anew
        monkeypatch.setattr(ServerReport, "configuration", hang)
        asking = serving.Background(lambda: gateway.post("Double", {"x": [1]}))
        assert entered.wait(LIMIT_S)
        assert gateway.get("/health/live").status == 200
        released.set()
        assert asking.finish().result.status == 200


@pytest.mark.parametrize("path", ["/v1/models/Linger", "/v2/models/Linger/infer"])
def test_requests_that_outlast_the_stop_may_be_sent_elsewhere(served, caplog, path):
    config = GatewayConfig(port=0)
    server = GatewayServer(Gateway(served, config), config)
    server.start()
    client = gateways.Client(server.url)
    gateways.lingering.clear()
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = {"x": [1]} if path.startswith("/v1") else {"inputs": [tensor]}
    asking = serving.Background(lambda: client.send("POST", path, json.dumps(body).encode()))
    assert gateways.lingering.wait(LIMIT_S)
    assert server.stop(1) == 1
    response = asking.finish().result
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert "stopping" in str(response.json()["error"])
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_streams_that_outlast_the_stop_end_with_an_error(served, accept):
    config = GatewayConfig(port=0)
    server = GatewayServer(Gateway(served, config), config)
    server.start()
    client = gateways.Client(server.url)
    gateways.cancelled.clear()
    with contextlib.closing(client.connection()) as connection:
        connection.request("POST", "/v1/models/Wait", b'{"x": [1]}', {"accept": accept})
        response = connection.getresponse()
        assert response.readline()
        assert server.stop(1) == 0
        last = response.read().replace(b"event: done\ndata: {}\n\n", b"").rstrip().split(b"\n")[-1]
    assert json.loads(last.removeprefix(b"data: ")) == {"error": {"message": "The gateway is stopping."}}
    assert gateways.cancelled.wait(LIMIT_S)


def test_requests_are_served_while_a_gateway_drains(served):
    drain_s = 0.5
    config = GatewayConfig(port=0, drain_secs=drain_s)
    server = GatewayServer(Gateway(served, config), config)
    server.start()
    client = gateways.Client(server.url)
    began = time.monotonic()
    stopping = serving.Background(lambda: server.stop(5))
    serving.wait_until(lambda: client.get("/health/ready").status == 503)
    while time.monotonic() - began < drain_s - 0.1:
        assert client.post("Double", {"x": [1]}).json() == {"y": [2]}
        assert client.get("/health/ready").status == 503
    assert stopping.finish().ended - began >= drain_s


def test_mounted_in_another_application(served):
    app = Starlette(routes=[Mount("/models", Gateway(served))])
    with running(app) as client:
        response = client.send("POST", "/models/v1/models/Double", b'{"x": [1]}')
        assert response.json() == {"y": [2]}
        assert client.get("/models/health/ready").status == 200


def test_run_by_uvicorn(served):
    with running(Gateway(served)) as client:
        assert client.post("Double", {"x": [1]}).json() == {"y": [2]}


def test_the_application_starts_the_server_on_loopback():
    with serving.running_triton() as triton:
        triton.bind("Double", gateways.double, gateways.NUMBERS, gateways.DOUBLED, config=ModelConfig(max_batch_size=8))
        with running(Gateway(triton)) as client:
            assert client.post("Double", {"x": [1]}).json() == {"y": [2]}
            assert triton.config.http_address == triton.config.grpc_address == "127.0.0.1"


def test_a_mounted_application_starts_the_server():
    with serving.running_triton() as triton:
        triton.bind("Double", gateways.double, gateways.NUMBERS, gateways.DOUBLED, config=ModelConfig(max_batch_size=8))
        gateway = Gateway(triton)
        with running(Starlette(routes=[Mount("/models", gateway)], lifespan=gateway.lifespan)) as client:
            response = client.send("POST", "/models/v1/models/Double", b'{"x": [1]}')
            assert response.json() == {"y": [2]}


def test_a_server_that_fails_to_start():
    later = TritonLifecyclePolicy(launch_triton_on_startup=False)
    with Triton(config=TritonConfig(model_repository="/nowhere"), triton_lifecycle_policy=later) as triton:
        server = uvicorn.Server(uvicorn.Config(Gateway(triton), log_config=None, lifespan="on"))
        with contextlib.suppress(SystemExit), socket.create_server(("127.0.0.1", 0)) as listening:
            server.run(sockets=[listening])
        assert not server.started


def test_a_port_in_use(served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = GatewayConfig(port=taken.getsockname()[1])
        with pytest.raises(PyTritonRuntimeError, match="Choose another port"):
            GatewayServer(Gateway(served, config), config)


@pytest.mark.parametrize(
    "setting",
    [
        {"port": -1},
        {"max_body_size": 0},
        {"drain_secs": -1},
        {"tls_key": "k"},
        {"cors_origins": "*"},
        {"forwarded_headers": "x-tenant"},
        {"allowed_hosts": "a"},
    ],
)
def test_invalid_settings(setting):
    with pytest.raises(PyTritonBadParameterError, match=next(iter(setting)).split("_")[0]):
        GatewayConfig(**setting)


def test_serve_with_a_gateway_finishes_requests_in_flight(unused_port):
    entered, release = threading.Event(), threading.Event()

    def slow(requests):
        entered.set()
        release.wait(LIMIT_S)
        return [{"y": request["x"]} for request in requests]

    results = []
    triton = serving.running_triton()
    triton.bind("Slow", slow, gateways.NUMBERS, gateways.DOUBLED)
    serving_thread = threading.Thread(target=lambda: triton.serve(gateway=GatewayConfig(port=unused_port)))
    serving_thread.start()
    client = gateways.Client(f"http://127.0.0.1:{unused_port}")

    def is_ready():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return client.get("/health/ready").status == 200

    serving.wait_until(is_ready)
    assert triton.config.http_address == triton.config.grpc_address == triton.config.metrics_address == "127.0.0.1"
    sending = threading.Thread(target=lambda: results.append(client.post("Slow", {"x": [1]}).json()))
    sending.start()
    assert entered.wait(LIMIT_S)
    stopping = threading.Thread(target=triton.stop)
    stopping.start()
    release.set()
    for thread in (sending, stopping, serving_thread):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert results == [{"y": [1.0]}]


@pytest.fixture
def unused_port():
    return serving.free_ports(1)[0]
