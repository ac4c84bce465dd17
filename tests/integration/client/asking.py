"""All kinds of clients in the same words, for what is the same of all of them."""

from __future__ import annotations

import asyncio
import contextlib

from serving import HOST, free_config

from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
from pytriton.client.core.loops import LoopThread
from pytriton.triton import Triton, TritonSecurityConfig

KINDS = ("blocking", "futures", "asyncio")
PROTOCOLS = ("http", "grpc")


def url_of(triton, protocol):
    port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    return f"{protocol}://{HOST}:{port}"


def open_triton(**settings):
    """A server on free ports, none of whose endpoints asks for a token unless its settings say so."""
    return Triton(config=free_config(**settings), security_config=TritonSecurityConfig(restricted_endpoints=[]))


class Asker:
    """A client of any kind, each of whose methods waits."""

    def __init__(self, kind, url, model, **arguments):
        self.kind = kind
        self._loop = LoopThread("test")
        client_class = {"blocking": ModelClient, "futures": FuturesModelClient, "asyncio": AsyncioModelClient}[kind]
        self.client = client_class(url, model, **arguments)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self._wait(method, args, kwargs)

    @property
    def model_config(self):
        if self.kind == "blocking":
            return self.client.model_config
        if self.kind == "futures":
            return self.client.model_config().result()
        return self._wait(lambda: self.client.model_config, (), {})

    def close(self):
        self._wait(self.client.close, (), {})

    def end(self):
        self.close()
        self._loop.stop(_nothing)

    def _wait(self, method, args, kwargs):
        if self.kind == "asyncio":

            async def call():
                return await method(*args, **kwargs)

            return self._loop.run(call)
        result = method(*args, **kwargs)
        return result.result() if hasattr(result, "add_done_callback") else result


async def _nothing():
    await asyncio.sleep(0)


@contextlib.contextmanager
def asking(kind, url, model, **arguments):
    asker = Asker(kind, url, model, **arguments)
    try:
        yield asker
    finally:
        asker.end()
