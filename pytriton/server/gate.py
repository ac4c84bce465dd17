"""The gate: whether the server is ready and accepts requests. Counterpart of ``backend/guard/gate.h``."""

from __future__ import annotations

import collections
import contextlib
import enum
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterator

# The layout of the memory: the state, how many calls have hung so far, and the models that are not ready.
_HANGS_AT = 8
_UNREADY_AT = 16
_HASHES_AT = 24
_MAX_UNREADY = 500
_COUNT = struct.Struct("<Q")


class GateState(enum.IntEnum):
    """The readiness that the server reports to its clients."""

    SERVING = 0
    """Ready, if its models are."""

    STARTING = 1
    """Not ready."""

    DRAINING = 2
    """Not ready, but it accepts requests: load balancers have time to notice."""

    STOPPING = 3
    """Not ready, and new requests are refused as unavailable; those in flight are still served."""


class Gate:
    """A byte of shared memory, which the guard in the server reads."""

    def __init__(self) -> None:
        """Creates the memory; the gate is at STARTING."""
        self.fd = os.memfd_create("pytriton-gate")
        """The memory's file descriptor, which the server inherits."""
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._unready: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._is_held = False
        self._wanted = GateState.STARTING
        self._memory[0] = GateState.STARTING

    def set_hanging(self, model: str, hangs: bool) -> None:
        """Marks a model as not ready while any of its calls hangs.

        Args:
            model: The model's name.
            hangs: Whether a call has begun to hang, or no longer does.
        """
        with self._lock:
            (hangs_so_far,) = _COUNT.unpack_from(self._memory, _HANGS_AT)
            _COUNT.pack_into(self._memory, _HANGS_AT, hangs_so_far + hangs)
            self._count(model, hangs)

    def set_failing(self, model: str, fails: bool) -> None:
        """Marks a model as not ready while none of its instances can be restarted.

        Args:
            model: The model's name.
            fails: Whether that has begun, or has ended.
        """
        with self._lock:
            self._count(model, fails)

    @property
    def state(self) -> GateState:
        """The readiness that the server reports to its clients."""
        return GateState(self._memory[0])

    def open(self) -> None:
        """Lets the server report that it is ready, unless it is draining or stopping."""
        self._advance(GateState.SERVING, since=GateState.STARTING)

    def drain(self) -> None:
        """Makes the server report from now on that it is not ready, if it was ready before."""
        self._advance(GateState.DRAINING, since=GateState.SERVING)

    def close(self) -> None:
        """Makes the server refuse requests permanently."""
        with self._lock:
            self._wanted = GateState.STOPPING
            self._memory[0] = GateState.STOPPING

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the server report that it is not ready within the block, in which it is restarted and loads models."""
        with self._lock:
            self._is_held = True
            self._show()
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                self._show()

    def _count(self, model: str, begins: bool) -> None:
        """Counts a reason for which a model is not ready; called with the lock held."""
        self._unready[model] += 1 if begins else -1
        hashes = [name_hash(name) for name, count in self._unready.items() if count > 0][:_MAX_UNREADY]
        # Meanwhile, a reader may see one model too many or too few.
        struct.pack_into(f"<{len(hashes)}Q", self._memory, _HASHES_AT, *hashes)
        _COUNT.pack_into(self._memory, _UNREADY_AT, len(hashes))

    def _advance(self, state: GateState, since: GateState) -> None:
        with self._lock:
            if self._wanted is since:
                self._wanted = state
                self._show()

    def _show(self) -> None:
        refuses = self._wanted is GateState.STOPPING
        self._memory[0] = GateState.STARTING if self._is_held and not refuses else self._wanted


def name_hash(name: str) -> int:
    """Returns the FNV-1a hash of a model's name, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
