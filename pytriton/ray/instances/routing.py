"""Chooses the actor for a batch, and another one if that dies."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import ray
import ray.exceptions

from pytriton.proxy.tensors.failure import RequestError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.ray.cluster import death_of, result_of

LOGGER = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long a batch waits for an actor, as it does for a worker process."""
_RESTARTING = "its actor is being restarted, or waits for room in the cluster"
_CHECK_S = 5.0  # for an actor to respond to a check


class RemoteActor:
    """One actor, from its start to its death.

    Attributes:
        handle: Ray's handle.
        node: The address of its node.
        is_lost: Set when it has died, or cannot be reached.
        in_flight: Number of batches that it is serving.
    """

    def __init__(self, handle: Any, node: str) -> None:
        self.handle = handle
        self.node = node
        self.is_lost = threading.Event()
        self.in_flight = 0

    def is_alive(self) -> bool:
        """Checks whether the actor responds."""
        try:
            result_of(self.handle.node.remote(), _CHECK_S)
        except ray.exceptions.GetTimeoutError:
            return False  # busy with code that holds the GIL
        except Exception:
            self.is_lost.set()
            return False
        return True


class ActorGroup:
    """The actors of a model, one for each instance.

    Args:
        model: The model's name.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._actors: dict[int, RemoteActor | None] = {}
        self._failures: dict[int, str] = {}
        self._changed = threading.Condition()

    def add(self, number: int) -> None:
        """Adds an instance, whose actor is being started."""
        with self._changed:
            self._actors[number] = None

    def put(self, number: int, actor: RemoteActor) -> None:
        """Sets the actor of an instance, which has been loaded."""
        with self._changed:
            if number in self._actors:
                self._actors[number] = actor
                self._failures.pop(number, None)
            self._changed.notify_all()

    def fail(self, number: int, failure: str) -> None:
        """Notes that an instance has no actor.

        Args:
            number: The instance.
            failure: Why it cannot be started; empty if it is being started.
        """
        with self._changed:
            if number in self._actors:
                self._actors[number] = None
                self._failures[number] = failure
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """Removes an instance, which is no longer needed."""
        with self._changed:
            self._actors.pop(number, None)
            self._changed.notify_all()

    def own(self, number: int) -> RemoteActor | None:
        """Returns the actor of an instance, if it is available."""
        actor = self._actors.get(number)
        if actor is None or actor.is_lost.is_set() or not ray.is_initialized():  # a call would reinitialize Ray
            return None
        return actor

    def wait(self, number: int, but: set[RemoteActor], deadline: float) -> RemoteActor:
        """Waits for an actor: that of an instance or, while it has none, that of another one.

        Args:
            number: The instance.
            but: Actors to exclude.
            deadline: The ``time.monotonic()`` until which to wait.

        Raises:
            RequestError: No actor is available.
        """
        with self._changed:
            while True:
                actor = self._best(number, but)
                if actor is not None:
                    return actor
                left_s = deadline - time.monotonic()
                reason = self._reason(number) or (_RESTARTING if left_s <= 0 else "")
                if reason:
                    # From these words, clients know that the request was not executed.
                    raise RequestError(ErrorCode.UNAVAILABLE, f"model '{self.model}' has no worker: {reason}")
                self._changed.wait(left_s)

    def has(self, number: int) -> bool:
        """Returns whether an instance is still needed."""
        return number in self._actors

    def _best(self, number: int, but: set[RemoteActor]) -> RemoteActor | None:
        own = self.own(number)
        if own is not None and own not in but:
            return own
        there = [each for other in self._actors if (each := self.own(other)) is not None and each not in but]
        return min(there, key=lambda actor: actor.in_flight, default=None)

    def _reason(self, number: int) -> str:
        """Returns why there will soon be no actor; empty if there may be one."""
        if number not in self._actors:
            return "it is being unloaded, or the process that serves it is exiting"
        if all(self._failures.get(each) for each in self._actors):
            return f"its actor {self._failures[number]}"
        return ""


class Route:
    """The actors to which one batch is sent, one after another.

    Args:
        group: The actors of the model.
        number: The instance that has the batch.
        retries: How often the batch is sent to another actor if one dies.
    """

    def __init__(self, group: ActorGroup, number: int, retries: int) -> None:
        self._group = group
        self._number = number
        self._left = retries
        self._deadline = time.monotonic() + WAIT_S
        self._tried: set[RemoteActor] = set()
        self._loss: RequestError | None = None

    def first(self) -> RemoteActor | None:
        """Returns the instance's own actor if it is available, for the first attempt."""
        return None if self._tried else self._group.own(self._number)

    def next(self) -> RemoteActor:
        """Waits for an actor that responds to a check.

        Raises:
            RequestError: No actor is available.
        """
        while True:
            try:
                actor = self._group.wait(self._number, self._tried, self._deadline)
            except RequestError:
                if self._loss is not None:  # the batch may have been executed
                    raise self._loss from None
                raise
            if actor.is_alive():
                return actor
            self._tried.add(actor)

    def lost(self, actor: RemoteActor, error: ray.exceptions.RayError, *, has_begun: bool = False) -> None:
        """Notes that an actor has died with the batch, if that is what an error means.

        Args:
            actor: The actor.
            error: Ray's error.
            has_begun: Whether responses have been sent, so that the batch cannot be sent again.

        Raises:
            RayError: The error means something else.
            RequestError: The batch must not be sent again.
        """
        if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.GetTimeoutError):
            raise error
        actor.is_lost.set()
        self._tried.add(actor)
        model = self._group.model
        text = f"model '{model}': the worker has gone: its actor on node {actor.node} died: {death_of(error)}"
        self._loss = RequestError(ErrorCode.UNAVAILABLE, text)
        if has_begun or self._left <= 0 or not self._group.has(self._number):
            raise self._loss from error
        self._left -= 1
        LOGGER.warning("A batch of model %r is sent to another actor, as that on node %s died.", model, actor.node)
