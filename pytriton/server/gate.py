"""The gate: says whether the server is ready, and whether it accepts requests. Twin of ``backend/guard/gate.h``."""

from __future__ import annotations

import enum
import mmap
import os
import weakref


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
    """A byte of shared memory, which the guard in the server reads."""

    def __init__(self) -> None:
        """Creates the memory; the gate is at STARTING."""
        self.fd = os.memfd_create("pytriton-gate")
        """The memory's file descriptor, which the server inherits."""
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)
        self.state = GateState.STARTING

    @property
    def state(self) -> GateState:
        """What the server tells its clients; takes effect at once."""
        return GateState(self._memory[0])

    @state.setter
    def state(self, state: GateState) -> None:
        self._memory[0] = state
