"""Clients of a scripted current server, some of whose responses differ from the bundled one's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.server
import json
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from peers import HOST
from serving import Background
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from pytriton.client import (
    AsyncioModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.client.utils import wait_for_model_ready
from pytriton.server.control import control_of_url

TIMEOUT_S = 0.3
X = np.ones(1, np.float32)
CONFIG = model_config_pb2.ModelConfig(
    name="slow",
    input=[model_config_pb2.ModelInput(name="x", data_type=model_config_pb2.TYPE_FP32, dims=[-1])],
    output=[model_config_pb2.ModelOutput(name="y", data_type=model_config_pb2.TYPE_FP32, dims=[1])],
)


class CurrentServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Has one model, which responds to nothing, and does not take shared memory of clients."""

    def __init__(self):
        self.version, self.refusal = "2.71.0", ""
        self.has_request, self.is_cancelled, self.is_released = (threading.Event() for _ in range(3))

    def ServerMetadata(self, request, context):  # noqa: N802
        return service_pb2.ServerMetadataResponse(name="triton", version=self.version)

    def ModelConfig(self, request, context):  # noqa: N802
        return service_pb2.ModelConfigResponse(config=CONFIG)

    def ModelInfer(self, request, context):  # noqa: N802
        context.add_callback(lambda: context.is_active() or self.is_released.is_set() or self.is_cancelled.set())
        self.has_request.set()
        self.is_released.wait(20)
        return service_pb2.ModelInferResponse()

    def ServerLive(self, request, context):  # noqa: N802  (gRPC's names)
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request, context):  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request, context):  # noqa: N802
        if request.name == CONFIG.name:
            return service_pb2.ModelReadyResponse(ready=True)
        return context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")

    def SystemSharedMemoryRegister(self, request, context):  # noqa: N802
        return context.abort(grpc.StatusCode.UNAVAILABLE, self.refusal)

    def RepositoryIndex(self, request, context):  # noqa: N802
        return service_pb2.RepositoryIndexResponse()


class CurrentHttpServer(http.server.BaseHTTPRequestHandler):
    """Has no models."""

    def do_GET(self):
        is_there = self.path.startswith("/v2/health")
        self.respond(200 if is_there else 404, {} if is_there else {"error": "Request for unknown model is not found"})

    def do_POST(self):
        self.respond(200, [])

    def respond(self, status, reply):
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def http_url():
    with http.server.ThreadingHTTPServer((HOST, 0), CurrentHttpServer) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def current_server():
    return CurrentServer()


@pytest.fixture
def url(current_server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(current_server, server)
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        yield f"grpc://{HOST}:{port}"
        current_server.is_released.set()
        server.stop(0).wait()


def test_a_missing_model_is_unavailable(url):
    with (
        ModelClient(url, "missing") as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="has no model 'missing'; it has no model"),
    ):
        client.wait_for_model(2)


@pytest.mark.parametrize(
    "refusal",
    [
        "system shared memory is disabled (--allow-client-shm=false)",
        "Client shared memory registration is not allowed",
        "the server was started without allow_client_shm",
    ],
)
def test_a_server_without_shared_memory_is_explained(url, current_server, refusal):
    current_server.refusal = refusal
    with (
        ModelClient(url, "slow", shared_memory=True) as client,
        pytest.raises(PyTritonClientInferenceServerError, match=r"TritonConfig\(allow_client_shm=True\)"),
    ):
        client.infer_sample(np.ones(1 << 20, np.float32))


def test_a_missing_model_is_unavailable_over_http(http_url):
    with (
        ModelClient(http_url, "missing") as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="has no model 'missing'; it has no model"),
    ):
        client.wait_for_model(2)


def test_a_missing_model_is_not_loaded_over_http(http_url):
    assert not control_of_url(http_url, None).is_loaded("missing")


def test_a_missing_model_is_unavailable_in_asyncio(url):
    async def wait():
        async with AsyncioModelClient(url, "missing") as client:
            await client.wait_for_model(2)

    with pytest.raises(PyTritonClientModelUnavailableError, match="has no model 'missing'; it has no model"):
        asyncio.run(wait())


def test_waiting_for_a_model_ends_as_unavailable(url):
    with (
        tritonclient.grpc.InferenceServerClient(url.removeprefix("grpc://")) as client,
        pytest.raises(PyTritonClientModelUnavailableError),
    ):
        wait_for_model_ready(client, "missing", timeout_s=0.5)


def test_a_missing_model_is_not_loaded_over_grpc(url):
    assert not control_of_url(url, None).is_loaded("missing")


def send_until_it_times_out(url):
    with (
        ModelClient(url, CONFIG.name, inference_timeout_s=TIMEOUT_S) as client,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(X)


def send_and_cancel(url):
    async def send():
        async with AsyncioModelClient(url, CONFIG.name) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.infer_sample(X), TIMEOUT_S)

    asyncio.run(send())


def send_and_close(url):
    client = ModelClient(url, CONFIG.name)
    sending = Background(lambda: client.infer_sample(X))
    time.sleep(TIMEOUT_S)
    start = time.monotonic()
    client.close()
    assert isinstance(sending.finish().error, PyTritonClientClosedError)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("send", [send_until_it_times_out, send_and_cancel, send_and_close])
def test_an_abandoned_request_is_cancelled(url, current_server, send):
    send(url)
    assert current_server.is_cancelled.wait(5)


@pytest.mark.parametrize("send", [send_until_it_times_out, send_and_cancel])
@pytest.mark.parametrize("version", ["2.51.0", "unknown"])
def test_an_abandoned_request_is_not_cancelled_on_an_older_server(url, current_server, send, version):
    current_server.version = version
    start = time.monotonic()
    send(url)
    assert current_server.has_request.is_set()
    # The connection is closed, which cancels the request, only when the server has read it.
    assert current_server.is_cancelled.wait(5)
    assert time.monotonic() - start >= TIMEOUT_S + 1
