"""Waiting until servers and models are ready."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence

from pytriton.client.core.deadlines import Deadline, in_seconds
from pytriton.client.core.sansio import Sleep, Steps
from pytriton.client.core.servers import Server
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.utils.back_off import BackOff

LOGGER = logging.getLogger(__name__)

_BACK_OFF = BackOff(first_s=0.01, max_s=0.25)
_PROBE_TIMEOUT_S = 5.0
_LOOK_CLOSER_EVERY_S = 1.0
_MAX_LISTED = 10


def wait_until_ready(
    servers: Sequence[Server],
    model: tuple[str, str] | None,
    timeout_s: float,
    sleep: Sleep,
    started: float | None = None,
) -> Steps[None]:
    """Waits until at least one server is ready, and has a model ready; the others are avoided for now.

    Args:
        servers: The servers.
        model: Name and version of a model; the version may be empty. None waits for servers only.
        timeout_s: How long to wait.
        sleep: How to pause, in seconds.
        started: When the waiting began, a moment of `time.monotonic`; now by default.

    Raises:
        PyTritonClientTimeoutError: No server was ready in time.
        PyTritonClientModelUnavailableError: A server was ready, but not the model, or the model failed to load.
        PyTritonClientInferenceServerError: The endpoint requires an access token.
    """
    urls = ", ".join(server.url for server in servers)
    named = f"model {model[0]!r}{f' version {model[1]}' if model[1] else ''}" if model else ""
    deadline = Deadline(timeout_s, f"Waiting for {f'{named} at ' if named else ''}{urls}", started)
    next_look_s = min(_LOOK_CLOSER_EVERY_S, timeout_s / 2)
    warned = False
    up: Server | None = None  # it is ready, and has the model not ready
    reason: PyTritonClientError | None = None
    for attempt in itertools.count(1):
        found = False
        for server in servers:
            state = yield from _state(server, model, deadline, len(servers))
            if state is True:
                server.mark_up()
                found = True
                continue
            server.mark_down()
            if state == "up":
                up = server
            # A timeout at the last moment is less informative than the result before.
            elif not (isinstance(state, PyTritonClientTimeoutError) and (up or reason)):
                assert isinstance(state, PyTritonClientError)
                up, reason = None if up is server else up, state
        if found:
            return
        if model is not None and up is not None and deadline.waited_s() > next_look_s:
            next_look_s += _LOOK_CLOSER_EVERY_S
            yield from _look_closer(up, model, deadline, warn=not warned)
            warned = True
        if not deadline.passed():
            yield functools.partial(sleep, min(_BACK_OFF.pause_s(attempt), deadline.remaining_s()))
        if deadline.passed():  # no time is left for another response
            break
    if up is not None:
        raise PyTritonClientModelUnavailableError(
            f"The server at {up.url} is ready, but {named} was not within {in_seconds(timeout_s)}; is it loaded, "
            "under this name and version?"
        )
    raise deadline.error(f": {reason.message.rstrip('.')}" if reason else "")


def is_ready(server: Server, model: tuple[str, str], timeout_s: float) -> Steps[bool]:
    """Returns whether a model is ready at a server; False if the server does not respond."""
    try:
        ready: bool = yield server.call("is_model_ready", timeout_s, *model)
    except (PyTritonClientTimeoutError, PyTritonClientInferenceServerError):
        return False
    return ready


def probe_timeout_s(deadline: Deadline, count: int = 1, longest_s: float = _PROBE_TIMEOUT_S) -> float:
    """Returns how long to wait for one of several servers, so that time is left for the others.

    Args:
        deadline: By when all must be done.
        count: How many servers there are.
        longest_s: How long to wait at most.
    """
    return max(0.001, min(longest_s, deadline.remaining_s() / (count + 1 if count > 1 else 1)))


def _state(
    server: Server, model: tuple[str, str] | None, deadline: Deadline, count: int
) -> Steps[bool | str | PyTritonClientError]:
    """Returns True if the model is ready, ``"up"`` if only the server is, or else the error."""
    try:
        if model is not None and (yield server.call("is_model_ready", probe_timeout_s(deadline, count), *model)):
            return True
        if (yield server.call("is_server_ready", probe_timeout_s(deadline, count))):
            return model is None or "up"
    except (PyTritonClientTimeoutError, PyTritonClientInferenceServerError) as error:
        if isinstance(error, PyTritonClientInferenceServerError) and error.failure is Failure.RESTRICTED:
            raise
        return error
    return PyTritonClientError(f"The server at {server.url} is not ready")


def _look_closer(server: Server, model: tuple[str, str], deadline: Deadline, *, warn: bool) -> Steps[None]:
    """Looks why the model is not ready, and does not wait for one that failed to load."""
    name, version = model
    try:
        index = yield server.call("get_model_repository_index", probe_timeout_s(deadline))
    except PyTritonClientError:  # the endpoint is restricted, or the server has just gone
        return
    entries = [entry for entry in index if entry["name"] == name and version in ("", entry.get("version", ""))]
    for entry in entries:
        reason = entry.get("reason", "")
        if entry.get("state") == "UNAVAILABLE" and reason not in ("", "unloaded"):
            raise PyTritonClientModelUnavailableError(
                f"Model {name!r} at {server.url} failed to load: {reason.rstrip('.')}."
            )
    if not warn:
        return
    others = sorted({entry["name"] for entry in index if entry.get("state") == "READY"} - {name})
    LOGGER.warning(
        "Still waiting, up to %s: the server at %s has %s.%s",
        in_seconds(deadline.timeout_s),
        server.url,
        f"the model {name!r} not ready" if entries else f"no model {name!r}",
        f" It has {_listed(others)}." if others and not entries else "",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MAX_LISTED]))
    return f"{shown} and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else shown
