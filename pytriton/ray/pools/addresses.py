"""The addresses of a pool's replicas, known to a client's process."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from typing import Any

import ray

from pytriton.ray.pools.directory import ReplicaEntry, Version, directory
from pytriton.utils.back_off import BackOff

LOGGER = logging.getLogger(__name__)

_WATCH_S = 10.0
_MARGIN_S = 10.0
_PROCESS = random.random()
_BACK_OFF = BackOff(first_s=0.2, max_s=2.0)


class Addresses:
    """Follows the replicas of a pool: a thread watches the directory. If that fails, the last known ones are used.

    Args:
        pool: The pool's name.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._directory = directory()
        self._version, entries = _watch(self._directory, pool, None, 0)
        self._urls = _urls(entries)
        self._ending = threading.Event()
        threading.Thread(
            target=_follow, args=(weakref.ref(self), self._ending), name="pytriton-ray-addresses", daemon=True
        ).start()
        weakref.finalize(self, self._ending.set)

    def urls(self, protocol: str) -> list[str]:
        """Returns the URLs of the ready replicas, for ``http`` or ``grpc``."""
        return self._urls[protocol]

    def reconnect(self) -> None:
        """Finds the directory again, or starts a new one."""
        self._directory = directory()

    def update(self) -> None:
        """Waits for a change, with a timeout, and applies it."""
        self._version, entries = _watch(self._directory, self._pool, self._version, _WATCH_S)
        self._urls = _urls(entries)


def _follow(addresses: weakref.ref[Addresses], ending: threading.Event) -> None:
    failures = 0
    while not ending.wait(_BACK_OFF.pause_s(failures) if failures else 0):
        known = addresses()
        if known is None or not ray.is_initialized():  # Ray would initialize itself
            return
        try:
            if failures:
                known.reconnect()
            known.update()
            failures = 0
        except Exception as error:  # the directory is being restarted
            failures += 1
            LOGGER.debug("The directory of pools does not respond: %r", error)
        del known


def _watch(actor: Any, pool: str, version: Version | None, timeout_s: float) -> tuple[Version, list[ReplicaEntry]]:
    # Not ray.get(): a thread that waits in it while the process leaves the cluster can crash the process.
    future = actor.watch.remote(pool, version, timeout_s).future()
    reply: tuple[Version, list[ReplicaEntry]] = future.result(timeout_s + _MARGIN_S)
    return reply


def _urls(entries: list[ReplicaEntry]) -> dict[str, list[str]]:
    """Returns the URLs by protocol, in an order specific to this process, so that clients start at different ones."""
    entries = sorted(entries, key=lambda entry: hash((_PROCESS, entry.id)))
    return {
        "http": [entry.http for entry in entries if entry.http],
        "grpc": [entry.grpc for entry in entries if entry.grpc],
    }
