"""The actor of a remote instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray

from pytriton.ray.instances.host import InstanceHost
from pytriton.ray.instances.messages import Loaded, NotLoaded, Packed, packed, unpacked

_MAX_CONCURRENCY = 10_000  # the server limits the batches; streams, cancellations and checks add to them


class InstanceActor:
    """The actor class. Ray wraps each method, so they only delegate to an `InstanceHost`.

    Args:
        name: The instance's name, which Ray shows.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._host = InstanceHost(name)
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return self._name

    async def node(self) -> str:
        """Returns the address of the node, once the actor has been placed."""
        address: str = ray.util.get_node_ip_address()
        return address

    async def live(self) -> None:
        """Returns when the actor is closed; Ray reports an error if it dies before."""
        await self._ended.wait()

    async def load(self, payload: bytes) -> Loaded | NotLoaded:
        """See `InstanceHost.load`."""
        return await self._host.load(payload)

    async def infer(self, sent: Packed) -> Packed:
        """See `InstanceHost.infer`."""
        return packed(await self._host.infer(unpacked(sent)))

    async def stream(self, sent: Packed) -> AsyncIterator[Packed]:
        """See `InstanceHost.stream`."""
        async for reply in self._host.stream(unpacked(sent)):
            yield packed(reply)

    async def cancel(self, number: int, requests: list[int]) -> None:
        """See `InstanceHost.cancel`."""
        self._host.cancel(number, requests)

    async def close(self) -> None:
        """See `InstanceHost.close`."""
        await self._host.close()
        self._ended.set()


def instance_actor(options: Mapping[str, Any]) -> Any:
    """Returns Ray's class for actors with these options, which creates them by ``remote(name)``.

    Raises:
        Exception: An option is unknown to Ray, or its value is invalid.
    """
    return ray.remote(InstanceActor).options(
        **options, max_restarts=0, max_task_retries=0, max_concurrency=_MAX_CONCURRENCY
    )
