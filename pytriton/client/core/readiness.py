"""Waiting until servers and models are ready."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence

from pytriton.client.core.deadlines import Deadline, in_seconds
from pytriton.client.core.port_probe import is_suspicious
from pytriton.client.core.sansio import Sleep, Steps
from pytriton.client.core.server_set import ServerSet
from pytriton.client.core.servers import Server
from pytriton.client.core.wait_policy import WAIT_FOR_ALL, WaitLimit, WaitPolicy, unavailable
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelNotReadyError,
    PyTritonClientTimeoutError,
)
from pytriton.utils.back_off import BackOff
from pytriton.utils.suggestions import nearest

LOGGER = logging.getLogger(__name__)

_BACK_OFF = BackOff(first_s=0.01, max_s=0.25)
_PROBE_TIMEOUT_S = 5.0
_LOOK_CLOSER_EVERY_S = 1.0
_ADDRESS_PAUSE_S = 0.05
_MAX_LISTED = 10
# While models are reloaded, they may be missing for a moment.
_ABSENT_S = 0.2
_ABSENT = "is not found"


def wait_for_addresses(servers: ServerSet, deadline: Deadline, sleep: Sleep) -> Steps[None]:
    """Waits until there is a server.

    Args:
        servers: The servers.
        deadline: How long to wait.
        sleep: How to pause, in seconds.

    Raises:
        PyTritonClientInferenceServerError: There was none in time.
    """
    warned = False
    while not servers.look():
        if deadline.passed():
            raise servers.no_address()
        if not warned and deadline.waited_s() > _LOOK_CLOSER_EVERY_S:
            warned = True
            LOGGER.warning("Still waiting, up to %s: %s", in_seconds(deadline.timeout_s), servers.no_address().message)
        yield functools.partial(sleep, min(_ADDRESS_PAUSE_S, deadline.remaining_s()))


def wait_until_ready(
    servers: ServerSet,
    model: tuple[str, str] | None,
    timeout_s: float,
    sleep: Sleep,
    started: float | None = None,
    policy: WaitPolicy = WAIT_FOR_ALL,
) -> Steps[None]:
    """Waits until at least one server, and a model there, are ready; other servers are avoided for now.

    Args:
        servers: The servers.
        model: Name and version of a model; the version may be empty. None waits for servers only.
        timeout_s: How long to wait.
        sleep: How to pause, in seconds.
        started: When the wait began, a `time.monotonic`; now by default.
        policy: The policy of the wait.

    Raises:
        PyTritonClientTimeoutError: No server was ready in time.
        PyTritonClientModelNotReadyError: A server was ready, but not the model, or the model failed to load.
        PyTritonClientInferenceServerError: The endpoint requires an access token, or another program responds.
    """
    present = servers.look()
    named = _named(model) if model else ""
    deadline = Deadline(timeout_s, f"Waiting for {f'{named} at ' if named else ''}{servers.described()}", started)
    next_look_s = min(_LOOK_CLOSER_EVERY_S, timeout_s / 2)
    warned = False
    up: Server | None = None  # ready, but without the model
    reason: PyTritonClientError | None = None
    may_be_absent, limit = not policy.model, WaitLimit(policy)
    looked_s = deadline.waited_s() if servers.changes else 0.0  # there may have been no server before
    for attempt in itertools.count(1):
        found = False
        if up is not None and up.is_gone:
            up = None
        if not present:
            reason, may_be_absent = servers.no_address(), False
            limit.note(None)
        for server in present:
            state = yield from _state(servers, server, model, deadline, len(present))
            if state is True:
                server.mark_up()
                found = True
                continue
            server.mark_down()
            may_be_absent = may_be_absent and state == "up"  # a server that is starting may still load it
            limit.note(state)
            if state == "up":
                up = server
            # A timeout at the last moment is less informative than the result before.
            elif not (isinstance(state, PyTritonClientTimeoutError) and (up or reason)):
                assert isinstance(state, PyTritonClientError)
                up, reason = None if up is server else up, state
        if found:
            if policy is WAIT_FOR_ALL and len(present) == 1:  # else, the model's configuration is fetched next
                yield from _check_metadata(present[0], deadline)
            return
        if attempt == 1:
            yield from _check_protocols(present, reason)
        if deadline.waited_s() - looked_s > limit.limit_s:
            raise unavailable(servers.described(), reason)
        if model is not None and may_be_absent and deadline.waited_s() - looked_s > _ABSENT_S:
            yield from _check_presence(present, model, deadline)
            may_be_absent = False
        if deadline.waited_s() > next_look_s:
            next_look_s += _LOOK_CLOSER_EVERY_S
            if model is not None and up is not None:
                yield from _look_closer(up, model, deadline, warn=not warned)
                warned = True
            elif up is None and not warned and _is_malformed(reason):
                assert reason is not None
                LOGGER.warning("Still waiting, up to %s: %s", in_seconds(timeout_s), reason.message)
                warned = True
        if not deadline.passed():
            yield functools.partial(sleep, min(_BACK_OFF.pause_s(attempt), deadline.remaining_s()))
        if deadline.passed():  # no time is left for another check
            break
        present = servers.look()
    if up is not None:
        raise PyTritonClientModelNotReadyError(
            f"The server at {up.url} is ready, but {named} was not within {in_seconds(timeout_s)}; is it loaded, "
            "under this name and version?"
        )
    raise deadline.error(f": {reason.message.rstrip('.')}" if reason else "")


def check_protocol(server: Server, error: PyTritonClientError | None) -> Steps[None]:
    """Raises an error if a server's port certainly uses another protocol than its URL.

    Args:
        server: The server.
        error: The error of a request to it.
    """
    if is_suspicious(server.transport.url, error):
        misdirected = yield server.transport.other_protocol
        if misdirected is not None:
            raise misdirected from None


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
        deadline: The deadline for all of them.
        count: Number of servers.
        longest_s: The maximum, in seconds.
    """
    return max(0.001, min(longest_s, deadline.remaining_s() / (count + 1 if count > 1 else 1)))


def _state(
    servers: ServerSet, server: Server, model: tuple[str, str] | None, deadline: Deadline, count: int
) -> Steps[bool | str | PyTritonClientError]:
    """Returns True if the model is ready, ``"up"`` if only the server is, otherwise the error."""
    if not servers.hold(server):
        return PyTritonClientError(f"The server at {server.url} has gone")
    try:
        if model is not None and (yield server.call("is_model_ready", probe_timeout_s(deadline, count), *model)):
            return True
        if (yield server.call("is_server_ready", probe_timeout_s(deadline, count))):
            return model is None or "up"
    except (PyTritonClientTimeoutError, PyTritonClientInferenceServerError) as error:
        if isinstance(error, PyTritonClientInferenceServerError) and error.failure is Failure.RESTRICTED:
            raise
        return error
    finally:
        servers.release(server)
    return PyTritonClientError(f"The server at {server.url} is not ready")


def _is_malformed(error: PyTritonClientError | None) -> bool:
    return isinstance(error, PyTritonClientInferenceServerError) and error.failure is Failure.MALFORMED


def _check_protocols(servers: Sequence[Server], reason: PyTritonClientError | None) -> Steps[None]:
    if len(servers) == 1:
        yield from check_protocol(servers[0], reason)


def _check_metadata(server: Server, deadline: Deadline) -> Steps[None]:
    """Raises an error if a server that says that it is ready is certainly not Triton, as its port for metrics."""
    if server.transport.url.protocol == "grpc":
        return
    error = None
    try:
        yield server.call("get_server_metadata", probe_timeout_s(deadline))
    except PyTritonClientError as caught:  # the endpoint may be restricted, too
        error = caught
    yield from check_protocol(server, error)


def _check_presence(servers: Sequence[Server], model: tuple[str, str], deadline: Deadline) -> Steps[None]:
    """Raises an error if all servers are ready, and none has the model in any state."""
    absent = None
    for server in servers:
        absent = yield from _absence(server, model, deadline)
        if absent is None:
            return
    assert absent is not None
    raise absent


def _absence(
    server: Server, model: tuple[str, str], deadline: Deadline
) -> Steps[PyTritonClientModelNotReadyError | None]:
    """Returns an error if a ready server does not have the model."""
    name, version = model
    problem = f"The server at {server.url} is ready and has no {_named(model)}"
    try:
        index = yield server.call("get_model_repository_index", probe_timeout_s(deadline))
    except PyTritonClientError:  # the endpoint is restricted
        is_absent = yield from _is_not_found(server, model, deadline)
        advice = "check its name and version, or pass access_token to get a list of the server's models"
        return PyTritonClientModelNotReadyError(f"{problem}; {advice}.") if is_absent else None
    if any(entry["name"] == name and version in ("", entry.get("version", "")) for entry in index):
        return None
    ready = [entry for entry in index if entry.get("state") == "READY"]
    versions = sorted({str(entry.get("version", "")) for entry in ready if entry["name"] == name})
    if versions:
        return PyTritonClientModelNotReadyError(f"{problem}; it has version {', '.join(versions)} of it.")
    others = sorted({entry["name"] for entry in ready})
    near = nearest(name, others)
    meant = f" Did you mean {near!r}?" if near is not None else ""
    return PyTritonClientModelNotReadyError(f"{problem}; it has {_listed(others) or 'no model'}.{meant}")


def _is_not_found(server: Server, model: tuple[str, str], deadline: Deadline) -> Steps[bool]:
    """Returns whether a server reports that it does not have a model, rather than that it is not ready."""
    try:
        yield server.call("get_model_config", probe_timeout_s(deadline), *model)
    except PyTritonClientInferenceServerError as error:
        return error.failure is Failure.NOT_SERVED and _ABSENT in error.message
    except PyTritonClientError:
        return False
    return False


def _named(model: tuple[str, str]) -> str:
    name, version = model
    return f"model {name!r}{f' version {version}' if version else ''}"


def _look_closer(server: Server, model: tuple[str, str], deadline: Deadline, *, warn: bool) -> Steps[None]:
    """Finds out why the model is not ready; raises an error if it failed to load."""
    name, version = model
    try:
        index = yield server.call("get_model_repository_index", probe_timeout_s(deadline))
    except PyTritonClientError:  # the endpoint is restricted, or the server has just exited
        return
    entries = [entry for entry in index if entry["name"] == name and version in ("", entry.get("version", ""))]
    for entry in entries:
        reason = entry.get("reason", "")
        if entry.get("state") == "UNAVAILABLE" and reason not in ("", "unloaded"):
            raise PyTritonClientModelNotReadyError(
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
