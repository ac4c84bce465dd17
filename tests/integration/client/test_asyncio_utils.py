"""Helper functions for tritonclient's asyncio clients."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from peers import HOST
from serving import bind_floats

from pytriton.client import PyTritonClientModelUnavailableError, PyTritonClientTimeoutError
from pytriton.client.asyncio_utils import (
    asyncio_get_model_config,
    asyncio_get_model_state,
    asyncio_wait_for_model_ready,
    asyncio_wait_for_model_status_loaded,
    asyncio_wait_for_server_ready,
)
from pytriton.client.utils import ModelState, create_client_from_url, get_model_config

CLIENTS = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}


@contextlib.asynccontextmanager
async def client_at(protocol, address):
    client = CLIENTS[protocol].InferenceServerClient(address)
    try:
        yield client
    finally:
        await client.close()


def with_client(protocol, url, function):
    """What an async function returns for a client."""

    async def main():
        async with client_at(protocol, url.rpartition("/")[2]) as client:
            return await function(client)

    return asyncio.run(main())


def test_a_model_that_is_ready(triton, name, protocol, url):
    bind_floats(triton, name, lambda requests: requests)

    async def look(client):
        await asyncio_wait_for_server_ready(client, 0.01)
        await asyncio_wait_for_model_status_loaded(client, name, 0.01)
        await asyncio_wait_for_model_ready(client, name, "1", timeout_s=10)
        return await asyncio_get_model_config(client, name), await asyncio_get_model_state(client, name)

    config, state = with_client(protocol, url, look)
    assert state is ModelState.READY
    assert (config.model_name, config.model_version, config.batching) == (name, 1, True)
    assert [(each.name, each.dtype) for each in config.inputs] == [("x", np.float32)]
    with create_client_from_url(url) as raw:
        assert get_model_config(raw, name, timeout_s=10) == config


def test_a_model_that_is_absent(triton, protocol, url):
    async def wait(client):
        await asyncio_wait_for_model_ready(client, "no-such-model", timeout_s=0.3)

    with pytest.raises(PyTritonClientModelUnavailableError, match=r"'no-such-model' took longer than 0.3 s"):
        with_client(protocol, url, wait)
    with pytest.raises(PyTritonClientModelUnavailableError, match="has no model 'no-such-model'"):
        with_client(protocol, url, lambda client: asyncio_get_model_state(client, "no-such-model"))


def test_no_server(protocol):
    async def wait(client):
        await asyncio_get_model_config(client, "any", timeout_s=0.3)

    with pytest.raises(PyTritonClientTimeoutError, match=r"Waiting for the server took longer than 0.3 s"):
        with_client(protocol, f"{HOST}:1", wait)
