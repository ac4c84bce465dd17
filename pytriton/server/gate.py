"""The gate: says whether the server is ready, and whether it accepts requests. Twin of ``backend/guard/gate.h``."""

from __future__ import annotations

import enum
import mmap
import os
import pathlib


class GateState(enum.IntEnum):
    """What the server tells its clients."""

    SERVING = 0
    """Ready, if its models are."""

    STARTING = 1
    """Not ready."""

    DRAINING = 2
    """Not ready, but it accepts requests: load balancers have time to notice."""

    STOPPING = 3
    """Not ready, and new requests are refused as unavailable; those in flight go on."""


class Gate:
    """A byte in a file, which the guard in the server reads.

    Args:
        path: The file, which is created.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Creates the file; the gate is at STARTING."""
        self.path = path
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, mmap.PAGESIZE)
            self._memory = mmap.mmap(file, mmap.PAGESIZE)
        finally:
            os.close(file)
        self.state = GateState.STARTING

    @property
    def state(self) -> GateState:
        """What the server tells its clients; takes effect at once."""
        return GateState(self._memory[0])

    @state.setter
    def state(self, state: GateState) -> None:
        self._memory[0] = state
