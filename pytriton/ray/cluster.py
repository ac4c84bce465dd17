"""The Ray cluster: joining it, the resources of its nodes, and the causes of actors' deaths."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions

from pytriton.exceptions import PyTritonInvalidOperationError

_INTERNAL = ("node:", "memory", "object_store_memory")
_MAX_REASON = 300
_REASON = re.compile(r"actor (?:is dead|died) because (.*?)(?:\. |\.?$)", re.MULTILINE)
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")

_lock = threading.Lock()


def start_ray(name: str) -> None:
    """Initializes Ray unless it is initialized, as Ray itself does on first use.

    Args:
        name: What requires it, for the message.

    Raises:
        PyTritonInvalidOperationError: Ray cannot be initialized.
    """
    with _lock:
        if ray.is_initialized():
            return
        try:
            ray.init()
        except Exception as error:
            raise PyTritonInvalidOperationError(
                f"Ray cannot be initialized for {name}: {type(error).__name__}: {error}; call ray.init() with the "
                "address of a running cluster, or start one."
            ) from error


def is_done(result: concurrent.futures.Future[Any], timeout_s: float) -> bool:
    """Waits for a call of an actor, and returns whether it is complete.

    A thread that waits in Ray's own functions while the process leaves the cluster can crash the process; so this is
    for threads that wait for long.

    Args:
        result: The ``future()`` of Ray's reference to the result.
        timeout_s: How long to wait.

    Raises:
        RaySystemError: Ray has been shut down.
    """
    with _unless_shut_down():
        return bool(concurrent.futures.wait([result], timeout_s).done)


def result_of(reference: Any, timeout_s: float | None = None) -> Any:
    """Waits for the result of a call of an actor.

    Args:
        reference: Ray's reference to it.
        timeout_s: How long to wait.

    Raises:
        GetTimeoutError: It takes longer.
        RayError: The actor has died, or Ray has been shut down.
    """
    with _unless_shut_down():
        return ray.get(reference, timeout=timeout_s)


@contextlib.contextmanager
def _unless_shut_down() -> Iterator[None]:
    """Converts the outcomes of Ray's functions at its shutdown to an error; called later, they would start it again."""
    error = ray.exceptions.RaySystemError("Ray has been shut down in this process")
    if not ray.is_initialized():
        raise error
    try:
        yield
    except SystemExit:
        raise error from None


def resources_of_cluster() -> str:
    """Describes the resources of each node, and those that are free."""
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        free = ray.available_resources()
    except Exception as error:  # the cluster is shutting down
        return f"the resources of its nodes are unknown ({error})"
    each = "; ".join(f"{node['NodeManagerAddress']}: {_in_words(node['Resources'])}" for node in nodes)
    return f"its nodes have {each or 'nothing'}, of which {_in_words(free)} are free"


def death_of(error: Exception) -> str:
    """Describes briefly why an actor died."""
    text = str(error)
    reason = _REASON.search(text)
    if reason is not None and "creation task" not in reason[1]:
        return reason[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    text = next((line for line in reversed(lines) if _ERROR.match(line)), lines[0])
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def _in_words(resources: dict[str, float]) -> str:
    shown = {name: value for name, value in resources.items() if not name.startswith(_INTERNAL)}
    words = [f"{name} {value:g}" for name, value in sorted(shown.items())]
    return ", ".join(words) or "no CPUs"
