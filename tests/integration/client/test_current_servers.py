"""Clients of a current server, which answers some questions in another way than the bundled one: scripted."""

from __future__ import annotations

import asyncio
import concurrent.futures

import grpc
import pytest
import tritonclient.grpc
from peers import HOST
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pytriton.client import (
    AsyncioModelClient,
    ModelClient,
    PyTritonClientModelUnavailableError,
)
from pytriton.client.utils import wait_for_model_ready
from pytriton.server.control import control_of_url


class CurrentServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Has no models, and does not take shared memory of clients."""

    def ServerLive(self, request, context):  # noqa: N802  (gRPC's names)
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request, context):  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request, context):  # noqa: N802
        context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")

    def RepositoryIndex(self, request, context):  # noqa: N802
        return service_pb2.RepositoryIndexResponse()


@pytest.fixture(scope="module")
def url():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(CurrentServer(), server)
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        yield f"grpc://{HOST}:{port}"
        server.stop(0).wait()


def test_a_model_that_is_not_there_is_unavailable(url):
    with (
        ModelClient(url, "missing") as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="model 'missing' was not within"),
    ):
        client.wait_for_model(0.5)


def test_a_model_that_is_not_there_is_unavailable_in_asyncio(url):
    async def wait():
        async with AsyncioModelClient(url, "missing") as client:
            await client.wait_for_model(0.5)

    with pytest.raises(PyTritonClientModelUnavailableError, match="model 'missing' was not within"):
        asyncio.run(wait())


def test_waiting_for_a_model_ends_as_unavailable(url):
    with (
        tritonclient.grpc.InferenceServerClient(url.removeprefix("grpc://")) as client,
        pytest.raises(PyTritonClientModelUnavailableError),
    ):
        wait_for_model_ready(client, "missing", timeout_s=0.5)


def test_a_server_that_is_controlled_over_grpc_has_not_loaded_it(url):
    assert not control_of_url(url, None).is_loaded("missing")
