"""Supervises the actor of a remote instance."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import ray

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.metrics import Counter
from pytriton.process.supervision import RestartLoop
from pytriton.ray.cluster import death_of, is_done, resources_of_cluster, start_ray
from pytriton.ray.instances.actor import instance_actor
from pytriton.ray.instances.messages import Loaded, NotLoaded
from pytriton.ray.instances.remote_callable import infer_func_of
from pytriton.ray.instances.routing import ActorGroup, RemoteActor
from pytriton.ray.instances.spec import InstanceSpec

LOGGER = logging.getLogger(__name__)

RESTARTS = Counter(
    "remote_instance_restarts_total", "Restarts of the actor of an instance", ["model", "version", "instance"]
)
"""Restarts, on the server's metrics endpoint."""

_POLL_S = 0.5
_GRACE_S = 0.5  # for an actor that is to stop immediately
_NO_RAY = "cannot run: Ray has been shut down in this process"


class _ClosingError(Exception):
    """The instance is no longer needed."""


class _StartError(Exception):
    """An actor cannot start."""


class ActorSupervisor:
    """Starts an actor, and replaces it when it dies.

    Args:
        spec: What to start.
        group: The actors of the same model; a new group by default.
        on_failing: Called with True when the actor cannot be restarted, and with False when it has been, or is closed.

    Raises:
        PyTritonInvalidOperationError: Ray cannot be initialized.
    """

    def __init__(self, spec: InstanceSpec, group: ActorGroup | None, on_failing: Callable[[bool], None]) -> None:
        """Starts the actor; `wait_until_loaded` reports the outcome."""
        start_ray(spec.name)
        self._spec = spec
        self.group = group or ActorGroup(spec.model.name)
        """The actors of the model."""
        self._handle: Any = None
        self._loaded: Loaded | None = None
        self._failure = ""
        self._loop = RestartLoop(
            f"actor of {spec.name}", f"pytriton-actor-{spec.model.name}", self._live_in_ray, self._note_end, on_failing
        )
        self.group.add(spec.number)
        self._loop.start()

    @property
    def restarts(self) -> int:
        """Number of restarts of the actor."""
        return self._loop.restarts

    def wait_until_loaded(self) -> Callable[..., Any]:
        """Waits until the actor has created its inference callable.

        Returns:
            A callable that sends batches to it.

        Raises:
            PyTritonInvalidOperationError: It could not be created.
        """
        self._loop.settled.wait()
        if self._loaded is None:
            raise PyTritonInvalidOperationError(f"The actor of {self._spec.name} {self._failure}")
        return infer_func_of(self._loaded, self._spec, self.group)

    def stop(self) -> None:
        """Tells the actor to stop, without waiting."""
        self._loop.closing.set()
        self.group.remove(self._spec.number)
        handle = self._handle
        if handle is not None and ray.is_initialized():
            with contextlib.suppress(Exception):  # it has died already
                handle.close.remote()

    def close(self, timeout_s: float) -> None:
        """Waits for the actor to end after `stop`, and kills it after a timeout.

        Args:
            timeout_s: How long to wait.
        """
        self._loop.join(max(timeout_s, _GRACE_S))
        _kill(self._handle)
        self._loop.join()

    def _note_end(self, how: str, was_loaded: bool, is_last: bool) -> None:
        if is_last:
            self._failure = how
        else:
            RESTARTS.labels(self._spec.model.name, self._spec.model.version, self._spec.number).inc()
        self.group.fail(self._spec.number, "" if was_loaded and not is_last else how)

    def _live_in_ray(self) -> tuple[str, bool]:
        """Runs an actor once, like `_live`; closes the loop if Ray has been shut down."""
        how, was_loaded = self._live()
        if ray.is_initialized():
            return how, was_loaded
        self._loop.closing.set()
        return _NO_RAY, was_loaded

    def _live(self) -> tuple[str, bool]:
        """Runs an actor once; returns how it ended, and whether it had created its inference callable."""
        actor: RemoteActor | None = None
        try:
            self._handle = instance_actor(self._spec.options).remote(self._spec.name)
            node = self._place()
            loaded = self._wait(self._handle.load.remote(self._spec.payload))
            if isinstance(loaded, NotLoaded):
                LOGGER.error("the actor of %s failed: %s\n%s", self._spec.name, loaded.error, loaded.detail)
                return f"cannot create its inference callable: {loaded.error}", False
            self._loaded = loaded
            actor = RemoteActor(self._handle, node)
            self.group.put(self._spec.number, actor)
            self._loop.note_loaded()
            if self._loop.restarts:
                LOGGER.info("The actor of %s has been restarted on node %s.", self._spec.name, node)
            live = self._handle.live.remote().future()
            while True:
                is_lost = actor.is_lost.is_set()
                if is_done(live, _POLL_S):
                    live.result()
                    return "was closed", True
                if is_lost:
                    return f"on node {node} does not respond", True
        except _ClosingError:
            return "is no longer needed", actor is not None
        except _StartError as error:
            return str(error), False
        except Exception as error:  # Ray raises many kinds
            where = "" if actor is None else f"on node {actor.node} "
            return f"{where}died: {death_of(error)}", actor is not None
        finally:
            if actor is not None:
                actor.is_lost.set()
            handle, self._handle = self._handle, None
            _kill(handle)

    def _place(self) -> str:
        """Waits until the actor runs on a node, and returns the node's address."""
        spec = self._spec
        reference = self._handle.node.remote()
        try:
            node: str = self._wait(reference, spec.placement_timeout_s)
        except TimeoutError:
            failure = (
                f"has not started in the Ray cluster within {spec.placement_timeout_s:g} s: it needs "
                f"{_in_words(spec.options)}, and {resources_of_cluster()}; if that is enough, its node is busy "
                "(RAY_worker_niceness=0 lets the processes of actors start sooner)"
            )
            if not self._loop.settled.is_set():
                raise _StartError(failure) from None
            LOGGER.warning("The actor of %s %s; it waits on.", spec.name, failure)
            self._loop.note_failing()
            node = self._wait(reference)
        return node

    def _wait(self, reference: Any, timeout_s: float | None = None) -> Any:
        """Waits for a result while the instance is needed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        result = reference.future()
        while not self._loop.closing.is_set():
            left_s = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if is_done(result, max(0.0, left_s)):
                return result.result()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
        raise _ClosingError


def _in_words(options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if value) or "no resources"


def _kill(handle: Any) -> None:
    if handle is not None and ray.is_initialized():
        with contextlib.suppress(Exception):  # it has died already
            ray.kill(handle)
