"""The workers of a bound model's instances, with a common interface."""

from __future__ import annotations

from typing import Protocol

from pytriton.process.supervisor import WorkerSupervisor
from pytriton.proxy.registry import RemoteWorker
from pytriton.proxy.worker.worker import Worker


class InstanceWorker(Protocol):
    """Serves one instance of a bound model: in this process, in another one, or on another machine."""

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""

    @property
    def connections(self) -> int:
        """Number of connected model instances."""

    @property
    def admitting(self) -> Worker | RemoteWorker:
        """The worker that admits model instances; to add to the registry once it is loaded."""

    def wait_until_loaded(self) -> None:
        """Waits until the inference callable exists.

        Raises:
            PyTritonInvalidOperationError: It could not be created.
        """

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which it has been idle; now, if it is busy."""

    def retire(self) -> None:
        """Closes it once all connected model instances have disconnected."""

    def end_streams(self, reason: str) -> None:
        """Ends coroutines and streams in flight, and sends the clients the reason."""

    def stop(self) -> None:
        """Begins to stop it, without waiting; `close` and `join` follow."""

    def close(self, timeout_s: float) -> None:
        """Closes it, and waits for running calls.

        Args:
            timeout_s: How long to wait.
        """

    def join(self, deadline: float) -> None:
        """Waits for its end after `close`.

        Args:
            deadline: The ``time.monotonic()`` at which it is killed.
        """


class LocalWorker(Worker):
    """Serves an instance in this process."""

    restarts = 0

    @property
    def admitting(self) -> Worker:
        """See `InstanceWorker`."""
        return self

    def wait_until_loaded(self) -> None:
        """Does nothing: the inference callable exists already."""

    def stop(self) -> None:
        """Does nothing: `close` is enough."""

    def join(self, deadline: float) -> None:
        """Does nothing: `close` is enough."""


class ProcessWorker(WorkerSupervisor):
    """Serves an instance in a process of its own."""

    @property
    def admitting(self) -> RemoteWorker:
        """See `InstanceWorker`."""
        return self

    def join(self, deadline: float) -> None:
        """Does nothing: `close` is enough."""
