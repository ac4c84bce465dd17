"""Waiting until servers and models are ready."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.client.core.deadlines import Deadline, in_seconds
from pytriton.client.core.failures import is_silence
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
_PATIENCE_S = 10.0  # until a server that does not get ready is logged
_ADDRESS_PAUSE_S = 0.05
_MAX_LISTED = 10
# While models are reloaded, they may be missing for a moment.
_ABSENT_S = 0.2
_ABSENT = "is not found"
_UNLOADED = "unloaded"


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
    wait = _Wait(servers, model, timeout_s, started, policy)
    deadline = wait.deadline
    for attempt in itertools.count(1):
        if (yield from wait.probe(present)):
            if policy is WAIT_FOR_ALL and len(present) == 1:  # otherwise, the model's configuration is fetched next
                yield from _check_metadata(present[0], deadline)
            return
        if attempt == 1:
            yield from _check_protocols(present, wait.reason)
        wait.check_limit()
        yield from wait.check_presence(present)
        yield from wait.look_closer()
        if not deadline.passed():
            yield functools.partial(sleep, min(_BACK_OFF.pause_s(attempt), deadline.remaining_s()))
        if deadline.passed():  # no time is left for another check
            raise wait.timeout()
        present = servers.look()


class _Wait:
    """The state of a wait for servers and a model.

    Attributes:
        deadline: When it ends.
        reason: The latest error of a server.
    """

    def __init__(
        self,
        servers: ServerSet,
        model: tuple[str, str] | None,
        timeout_s: float,
        started: float | None,
        policy: WaitPolicy,
    ) -> None:
        self._servers, self._model = servers, model
        self._named = _named(model) if model else ""
        what = f"Waiting for {f'{self._named} at ' if self._named else ''}{servers.described()}"
        self.deadline = Deadline(timeout_s, what, started)
        self.reason: PyTritonClientError | None = None
        self._up: Server | None = None  # ready, but without the model
        self._absence: PyTritonClientModelNotReadyError | None = None
        self._may_be_absent, self._limit = policy.gives_up_early, WaitLimit(policy)
        self._looked_s = self.deadline.waited_s() if servers.changes else 0.0  # there may have been no server before
        self._next_look_s = min(_LOOK_CLOSER_EVERY_S, timeout_s / 2)
        self._warned: set[str] = set()

    def probe(self, present: Sequence[Server]) -> Steps[bool]:
        """Checks all servers once, and marks them as up or down; returns whether any is ready.

        One that has been silent before is checked only if no other one is ready: that may take seconds again.
        """
        found = False
        if self._up is not None and self._up.is_gone:
            self._up = None
        if not present:
            self.reason, self._may_be_absent = self._servers.no_address(), False
            self._limit.note(None)
        for server in sorted(present, key=lambda server: server.is_silent):
            if found and server.is_silent:
                break
            state = yield from _state(self._servers, server, self._model, self.deadline, len(present))
            if state is True:
                server.mark_up()
                found = True
            else:
                server.mark_down(is_silent=is_silence(state))
                self._note(server, state)
        return found

    def _note(self, server: Server, state: bool | str | PyTritonClientError) -> None:
        is_up = state == "up"
        self._may_be_absent = self._may_be_absent and is_up  # a server that is starting may still load it
        self._limit.note(state)
        if is_up:
            self._up = server
        # A timeout at the last moment is less informative than the result before.
        elif not (is_silence(state) and (self._up or self.reason)):
            assert isinstance(state, PyTritonClientError)
            self._up, self.reason = None if self._up is server else self._up, state

    def check_limit(self) -> None:
        """Raises an error if the policy does not allow to wait any longer."""
        if self.deadline.waited_s() - self._looked_s > self._limit.limit_s:
            raise unavailable(self._servers.described(), self.reason)

    def check_presence(self, present: Sequence[Server]) -> Steps[None]:
        """Raises an error, after a moment, if all servers are ready and none has the model."""
        waited_s = self.deadline.waited_s() - self._looked_s
        if self._model is not None and self._may_be_absent and waited_s > _ABSENT_S:
            yield from _check_presence(present, self._model, self.deadline)
            self._may_be_absent = False

    def look_closer(self) -> Steps[None]:
        """Finds out after a while what is missing, and logs it once; raises an error if the model failed to load."""
        if self.deadline.waited_s() <= self._next_look_s:
            return
        self._next_look_s += _LOOK_CLOSER_EVERY_S
        if self._model is not None and self._up is not None:
            url = self._up.url
            self._absence = yield from _absence(self._up, self._model, self.deadline, check_load=True)
            absence = f"The server at {url} is ready, but {self._named} is not."
            self._warn("model", self._absence.message if self._absence else absence)
        elif self.reason is not None and (_is_malformed(self.reason) or self.deadline.waited_s() > _PATIENCE_S):
            self._warn("server", self.reason.message)

    def timeout(self) -> PyTritonClientError:
        """Returns the error of a wait whose time has passed."""
        if self._up is not None:
            if self._absence is not None:
                waited = f"The client waited {in_seconds(self.deadline.timeout_s)} for it."
                return PyTritonClientModelNotReadyError(f"{self._absence.message} {waited}")
            return PyTritonClientModelNotReadyError(
                f"The server at {self._up.url} is ready, but {self._named} was not within "
                f"{in_seconds(self.deadline.timeout_s)}; is it loaded, under this name and version?"
            )
        return self.deadline.error(f": {self.reason.message.rstrip('.')}" if self.reason else "")

    def _warn(self, of: str, message: str) -> None:
        """Logs what is missing, once for the server and once for the model."""
        if of not in self._warned:
            self._warned.add(of)
            LOGGER.warning("Still waiting, up to %s: %s", in_seconds(self.deadline.timeout_s), message)


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
    """Raises an error if a server that reports readiness is certainly not Triton, such as its port for metrics."""
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
    server: Server, model: tuple[str, str], deadline: Deadline, *, check_load: bool = False
) -> Steps[PyTritonClientModelNotReadyError | None]:
    """Returns an error if a ready server does not have the model; if `check_load`, raises one if it failed to load."""
    name, version = model
    problem = f"The server at {server.url} is ready and has no {_named(model)}"
    try:
        index = yield server.call("get_model_repository_index", probe_timeout_s(deadline))
    except PyTritonClientError:  # the endpoint is restricted
        is_absent = yield from _is_not_found(server, model, deadline)
        if not is_absent:
            return None
        advice = (
            "check its name and version, or pass access_token, which Triton.get_access_token() returns, to get a list "
            "of the server's models"
        )
        meant = yield from _in_another_case(server, model, deadline)
        return PyTritonClientModelNotReadyError(f"{problem}; {advice}.{meant}")
    entries = [entry for entry in index if entry["name"] == name and version in ("", entry.get("version", ""))]
    if entries and all(each.get("reason") == _UNLOADED for each in entries):
        return PyTritonClientModelNotReadyError(
            f"The server at {server.url} is ready, and has unloaded {_named(model)}; bind it, or load it, again."
        )
    if entries:
        if check_load:
            _check_load(server, entries)
        return None
    ready = [entry for entry in index if entry.get("state") == "READY"]
    versions = sorted({str(entry.get("version", "")) for entry in ready if entry["name"] == name})
    if versions:
        return PyTritonClientModelNotReadyError(f"{problem}; it has version {', '.join(versions)} of it.")
    others = sorted({entry["name"] for entry in ready})
    near = nearest(name, others)
    meant = f" Did you mean {near!r}?" if near is not None else ""
    return PyTritonClientModelNotReadyError(f"{problem}; it has {_listed(others) or 'no model'}.{meant}")


def _in_another_case(server: Server, model: tuple[str, str], deadline: Deadline) -> Steps[str]:
    """Returns a sentence that names a model of the same letters, in upper or lower case; empty if none is found."""
    name, version = model
    for other in dict.fromkeys([name[:1].upper() + name[1:], name.title(), name.lower(), name.upper()]):
        if other != name and (yield from is_ready(server, (other, version), probe_timeout_s(deadline))):
            return f" Did you mean {other!r}?"
    return ""


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


def _check_load(server: Server, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raises an error if an entry of the server's index says that its model failed to load."""
    for entry in entries:
        reason = entry.get("reason", "")
        if entry.get("state") == "UNAVAILABLE" and reason not in ("", "unloaded"):
            raise PyTritonClientModelNotReadyError(
                f"Model {entry['name']!r} at {server.url} failed to load: {reason.rstrip('.')}."
            )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MAX_LISTED]))
    return f"{shown} and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else shown
