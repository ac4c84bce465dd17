"""A model instance that is connected to a plain function."""

from __future__ import annotations

import threading

from pytriton.proxy.services.client import ServerClient
from pytriton.proxy.tensors.warmup import Warmup
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.transport.channel import Channel


class ConnectedInstance:
    """A model instance that is connected to a plain function.

    Args:
        channel: The connection.
        peer: The instance's arena.
        server_client: The client of its service channel.
        doorbell: Offset of the doorbell in the instance's arena; 0 for none.
        warmup: Its warm-up.
    """

    __slots__ = ("arena", "channel", "done", "doorbell", "has_successor", "peer", "server_client", "thread", "warmup")

    def __init__(
        self, channel: Channel, peer: PeerArena, server_client: ServerClient | None, doorbell: int, warmup: Warmup
    ) -> None:
        self.channel = channel
        self.peer = peer
        self.doorbell = doorbell
        self.warmup = warmup
        self.arena = Arena()  # the worker's, for this instance
        self.server_client = server_client
        self.done = threading.Event()
        self.thread: int | None = None  # the thread that serves the instance
        self.has_successor = False

    def close(self) -> None:
        """Disconnects the instance."""
        self.channel.close()
        self.arena.close()
        if self.server_client is not None:
            self.server_client.close()
        self.done.set()
