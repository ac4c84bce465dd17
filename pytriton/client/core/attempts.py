"""Attempts to send a request: to one server after another, and again after a while."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.client.core.deadlines import Deadline
from pytriton.client.core.failures import is_response, is_stopping
from pytriton.client.core.readiness import is_ready, probe_timeout_s
from pytriton.client.core.sansio import Sleep, Steps, T
from pytriton.client.core.server_set import ServerSet
from pytriton.client.core.servers import Server
from pytriton.client.core.settings import Settings
from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError, PyTritonClientTimeoutError
from pytriton.client.retry import RetryPolicy

_PROBE_TIMEOUT_S = 1.0
_ONCE = RetryPolicy(attempts=1)
_RESTART_PAUSE_S = 0.05
# A request during which the connection broke may be what crashes the server.
_MAX_LOST = 3
_RESTARTING = (Failure.UNREACHABLE, Failure.LOST)
# Another server can be tried at once: nothing was executed.
_ELSEWHERE = (Failure.UNREACHABLE, Failure.NOT_SERVED, Failure.BUSY)


class Attempts:
    """Sends a client's requests to its servers in turn, as often as its settings allow.

    Args:
        settings: The client's settings.
        model: Name and version of its model.
        servers: Its servers.
        sleep: How to pause, in seconds.

    Attributes:
        only: The server, if there is always exactly one.
        has_responded: Whether a server has responded to this client.
    """

    def __init__(self, settings: Settings, model: tuple[str, str], servers: ServerSet, sleep: Sleep) -> None:
        self._settings = settings
        self._model = model
        self._servers = servers
        self._sleep = sleep
        self.only = servers.present[0] if len(servers.present) == 1 and not servers.changes else None
        self.has_responded = False

    def send(self, send: Callable[[Server, Deadline], Steps[T]], deadline: Deadline, key: object = None) -> Steps[T]:
        """Sends a request through a function to one server after another, as often as `infer` does.

        Args:
            send: Sends the request to a server.
            deadline: The deadline.
            key: Selects a fixed server; see `ServerSet.candidates`.
        """

        def attempt() -> Steps[T]:
            return self.with_failover(lambda server: send(server, deadline), deadline, key)

        if self._settings.retry is not None:
            return self.with_retries(attempt, deadline)
        return self.across_restarts(lambda _: attempt(), deadline.timeout_s)

    def open(self, send: Callable[[Server], Steps[T]], deadline: Deadline, key: object = None) -> Steps[T]:
        """Sends a request for a stream through a function, like `send`, but never resends it without a retry policy.

        If servers come and go, it waits for one that can be reached: until then, nothing has been sent.
        """

        def attempt() -> Steps[T]:
            return self.with_failover(send, deadline, key)

        if self._settings.retry is None and self._servers.changes:
            return self.across_restarts(lambda _: attempt(), deadline.timeout_s, (Failure.UNREACHABLE,))
        return self.with_retries(attempt, deadline)

    def across_restarts(
        self, send: Callable[[float], Steps[T]], timeout_s: float, restarting: Sequence[Failure] = _RESTARTING
    ) -> Steps[T]:
        """Sends a request, and resends it for a while if the server is being restarted.

        It does not wait for a server that has never responded to this client, unless a function returns its address.

        Args:
            send: Sends the request; takes the seconds that are left.
            timeout_s: How long that may take in total.
            restarting: The failures that indicate a restart.
        """
        try:
            response = yield from send(timeout_s)
            self.has_responded = True
            return response
        except PyTritonClientInferenceServerError as error:
            restart_s = self._settings.restart_timeout_s
            # Addresses that a function returns belong to servers that have been ready.
            is_known = self.has_responded or self._servers.changes
            if not (is_known and restart_s > 0 and self._may_pass(error, restarting)):
                raise
            failed = error
        started = time.monotonic()
        lost = 0
        while True:
            lost += failed.failure is Failure.LOST
            waited_s = time.monotonic() - started
            if lost > _MAX_LOST or waited_s + _RESTART_PAUSE_S > min(restart_s, timeout_s):
                raise failed
            yield functools.partial(self._sleep, _RESTART_PAUSE_S)
            try:
                return (yield from send(timeout_s - waited_s - _RESTART_PAUSE_S))
            except PyTritonClientInferenceServerError as error:
                # The models of other processes are loaded only shortly after the server is ready again.
                if not self._may_pass(error, (*restarting, Failure.NOT_SERVED)):
                    raise
                failed = error

    def _may_pass(self, error: PyTritonClientInferenceServerError, failures: Sequence[Failure]) -> bool:
        """Returns whether a failure is one of these, or comes from a server that is about to be replaced."""
        return error.failure in failures or (self._servers.changes and is_stopping(error))

    def with_retries(self, attempt: Callable[[], Steps[Any]], deadline: Deadline) -> Steps[Any]:
        """Repeats an attempt until it succeeds, as often as the retry policy allows."""
        policy = self._settings.retry or _ONCE
        number = 1
        while True:
            try:
                return (yield from attempt())
            except PyTritonClientInferenceServerError as error:
                number += 1
                if number > policy.attempts or not policy.allows(error):
                    raise
                pause_s = policy.pause_before(number)
                if pause_s >= deadline.remaining_s():
                    raise
            yield functools.partial(self._sleep, pause_s)

    def with_failover(self, send: Callable[[Server], Steps[Any]], deadline: Deadline, key: object = None) -> Steps[Any]:
        """Sends a request to the next server, or to another one if that cannot serve it now.

        Args:
            send: Sends the request to a server.
            deadline: The deadline.
            key: Selects a fixed server; see `ServerSet.candidates`.
        """
        if self.only is not None:
            return (yield from send(self.only))
        failed: PyTritonClientInferenceServerError | None = None
        # If servers come and go, a new server may not have the model yet when the old one is already unreachable; but
        # there is no wait for a model that no server ever had.
        telling = Failure.UNREACHABLE if self.has_responded else Failure.NOT_SERVED
        for server in self._servers.candidates(key):
            if not self._servers.hold(server):
                continue
            try:
                if server.was_left_out and not (yield from self._is_back(server, deadline)):
                    continue
                return (yield from send(server))
            except PyTritonClientInferenceServerError as error:
                is_late = isinstance(error, PyTritonClientTimeoutError)  # for its queue
                if is_late or not is_response(error) or error.failure is Failure.NOT_SERVED or is_stopping(error):
                    server.mark_down()
                if error.failure not in _ELSEWHERE:
                    raise
                if failed is None or not (self._servers.changes and failed.failure is telling):
                    failed = error
            except PyTritonClientTimeoutError:
                server.mark_down()
                raise
            finally:
                self._servers.release(server)
        raise failed or self._servers.none_ready(self._model[0])

    def _is_back(self, server: Server, deadline: Deadline) -> Steps[bool]:
        """Returns whether a server that was marked down is ready again."""
        probe_s = probe_timeout_s(deadline, len(self._servers.present), _PROBE_TIMEOUT_S)
        if not (yield from is_ready(server, self._model, probe_s)):
            server.mark_down()
            return False
        server.mark_up()
        return True
