"""One interface to all kinds of clients, for behaviors that they share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from serving import HOST, free_config

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.core.loop_thread import LoopThread
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.triton import Triton, TritonSecurityConfig

KINDS = ("blocking", "futures", "asyncio")
PROTOCOLS = ("http", "grpc")
STREAM_KINDS = ("decoupled", "asyncio-decoupled")
CLASSES = {
    "blocking": ModelClient,
    "futures": FuturesModelClient,
    "asyncio": AsyncioModelClient,
    "decoupled": DecoupledModelClient,
    "asyncio-decoupled": AsyncioDecoupledModelClient,
}
WAYS = [*itertools.product(KINDS, PROTOCOLS), *itertools.product(STREAM_KINDS, ["grpc"])]
"""All clients, those of streams included, over each protocol that they speak."""

every_kind = pytest.mark.parametrize(("kind", "protocol"), WAYS)
"""Marks a test for all of them, in place of the fixtures of the same names."""

every_kind_that_loads = pytest.mark.parametrize(("kind", "protocol"), [way for way in WAYS if way[0] != "futures"])
"""The same, without those that neither load models nor wait for servers."""


def config_for(kind, **settings):
    """The configuration that a model needs for a kind of client."""
    return ModelConfig(decoupled=kind in STREAM_KINDS, **settings)


def url_of(triton, protocol):
    port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    return f"{protocol}://{HOST}:{port}"


def open_triton(**settings):
    """A server on free ports; by default, no endpoint requires a token."""
    return Triton(config=free_config(**settings), security_config=TritonSecurityConfig(restricted_endpoints=[]))


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


def bind_add_sub(triton, name, **arguments):
    """Binds a model with the inputs ``a`` and ``b`` and the outputs ``add`` and ``sub``, float32 vectors."""
    triton.bind(
        name,
        add_sub,
        [Tensor(name="a", dtype=np.float32, shape=(-1,)), Tensor(name="b", dtype=np.float32, shape=(-1,))],
        [Tensor(name="add", dtype=np.float32, shape=(-1,)), Tensor(name="sub", dtype=np.float32, shape=(-1,))],
        **arguments,
    )


def known(kind):
    """Arguments of a client that sends nothing before the first request."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "name": "floats",
        "max_batch_size": 4,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "model_transaction_policy": {"decoupled": kind in STREAM_KINDS},
    }
    return {"model_config": TritonModelConfig.from_dict(config), "ensure_model_is_ready": False}


class ClientOf:
    """A client of any kind, each of whose methods waits; streams are expected to have one response."""

    def __init__(self, kind, client):
        self.kind = kind
        self.client = client
        self._loop = LoopThread("test")

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self._wait(method, args, kwargs)

    @property
    def model_config(self):
        if self.kind == "futures":
            return self.client.model_config().result()
        return self._wait(lambda: self.client.model_config, (), {})

    def close(self):
        self._wait(self.client.close, (), {})

    def end(self):
        self.close()
        self._loop.stop(_nothing)

    def _wait(self, method, args, kwargs):
        if self.kind.startswith("asyncio"):

            async def call():
                result = method(*args, **kwargs)
                return _only([each async for each in result]) if isinstance(result, AsyncIterator) else await result

            return self._loop.run(call)
        result = method(*args, **kwargs)
        if isinstance(result, Iterator):
            return _only(result)
        return result.result() if hasattr(result, "add_done_callback") else result


def _only(responses):
    (response,) = responses
    return response


async def _nothing():
    await asyncio.sleep(0)


@contextlib.contextmanager
def open_client_with(kind, client):
    client_of = ClientOf(kind, client)
    try:
        yield client_of
    finally:
        client_of.end()


def open_client(kind, url, model, **arguments):
    return open_client_with(kind, CLASSES[kind](url, model, **arguments))
