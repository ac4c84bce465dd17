"""Serves an instance that another package has opened, for as long as it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pytriton.models.external_instance import OpenedInstance
from pytriton.proxy.worker.worker import InferenceCallable, Worker

_POLL_S = 0.1
_GRACE_S = 5.0  # for a retired instance, for which nothing waits


class OpenedWorker:
    """Serves the inference callable of an opened instance.

    Args:
        opened: The instance.
        create: Creates the worker of its callable.
        name: The model's name.
    """

    def __init__(self, opened: OpenedInstance, create: Callable[[InferenceCallable], Worker], name: str) -> None:
        self._opened = opened
        self._create = create
        self._name = name
        self._worker: Worker | None = None
        self._is_closing = threading.Event()
        self._retiring: threading.Thread | None = None

    @property
    def admitting(self) -> Worker:
        """See `InstanceWorker`."""
        assert self._worker is not None
        return self._worker

    @property
    def restarts(self) -> int:
        """Number of restarts of the instance."""
        return self._opened.restarts

    def wait_until_loaded(self) -> None:
        """Waits until the instance can serve.

        Raises:
            PyTritonInvalidOperationError: It cannot be loaded.
        """
        if self._worker is None:
            self._worker = self._create(self._opened.wait_until_loaded())

    @property
    def connections(self) -> int:
        """Number of connected model instances; not 0 until a retired instance has ended."""
        if self._retiring is not None:
            return int(self._retiring.is_alive())
        return 0 if self._worker is None else self._worker.connections

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which the worker has been idle; now, if it is busy."""
        return 0.0 if self._worker is None else self._worker.idle_since()

    def retire(self) -> None:
        """Ends the instance once no model instance of the server is connected."""
        if self._worker is not None:
            self._worker.retire()
        self._retiring = threading.Thread(target=self._retire, name=f"pytriton-retire-{self._name}", daemon=True)
        self._retiring.start()

    def end_streams(self, reason: str) -> None:
        """Ends coroutines and streams in flight, and sends the clients the reason."""
        if self._worker is not None:
            self._worker.end_streams(reason)

    def stop(self) -> None:
        """Tells an instance that is being loaded to stop; one that is loaded serves running calls until `close`."""
        if self._worker is None:
            self._opened.stop()

    def close(self, timeout_s: float) -> None:
        """Closes the worker, and stops the instance.

        Args:
            timeout_s: How long to wait for running calls.
        """
        self._is_closing.set()
        if self._worker is not None:
            self._worker.close(timeout_s)
        self._opened.stop()

    def join(self, deadline: float) -> None:
        """Waits for the instance's end after `close`.

        Args:
            deadline: The ``time.monotonic()`` at which it is killed.
        """
        self._opened.close(max(0.0, deadline - time.monotonic()))

    def _retire(self) -> None:
        while self._worker is not None and self._worker.connections:
            if self._is_closing.wait(_POLL_S):
                return
        self._opened.stop()
        self._opened.close(_GRACE_S)
