"""The policy by which a client waits for servers that are not ready."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from pytriton.client.core.failures import is_silence, is_temporary, server_error
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

# A server that is being restarted is back sooner.
_UNREACHABLE_S = 1.0
# A proxy's server, or the other end of a forwarded port, may not listen yet.
_OTHER_PROGRAM_S = 5.0
# A server may be busy for that long.
_SILENT_S = 30.0
_WITH_PATH = re.compile(r"https?://[^/, ]+(/[^, ]+)")  # of one server
_ADVICE = (
    "Check that the server is running, and its address and port (8000 for HTTP and 8001 for gRPC by default); with "
    "init_timeout_s, the client waits for a server that starts later."
)


class WaitPolicy(NamedTuple):
    """When a client stops waiting before its timeout.

    Attributes:
        gives_up_early: Whether it does so if a ready server does not have the model, if a server cannot be reached, or
            if another program responds at its address.
        unreachable_s: How long to wait in any case for a server that cannot be reached, in seconds.
    """

    gives_up_early: bool = False
    unreachable_s: float = _UNREACHABLE_S


WAIT_FOR_ALL = WaitPolicy()
"""Waits for everything."""


class WaitLimit:
    """The time limit for a server to become ready, by the errors so far.

    Args:
        policy: The policy.

    Attributes:
        limit_s: How long to wait in total.
    """

    def __init__(self, policy: WaitPolicy) -> None:
        self._policy = policy
        self.limit_s = 0.0 if policy.gives_up_early else math.inf

    def note(self, state: object) -> None:
        """Adjusts the limit to a server's state: an error, or any other value if the server responds like Triton."""
        self.limit_s = max(self.limit_s, self._limit_s(state))

    def _limit_s(self, state: object) -> float:
        if is_silence(state):
            return _SILENT_S
        if not isinstance(state, PyTritonClientInferenceServerError) or is_temporary(state):
            return math.inf
        if state.failure is Failure.UNREACHABLE:
            return self._policy.unreachable_s
        return _OTHER_PROGRAM_S if state.failure in (Failure.LOST, Failure.MALFORMED) else math.inf


def unavailable(urls: str, reason: PyTritonClientError | None) -> PyTritonClientError:
    """Returns the error of a client that gives up waiting.

    Args:
        urls: The addresses of the servers.
        reason: The error of a request to one of them.
    """
    why = reason.message.rstrip(".") if reason else f"No server can be reached at {urls}"
    if isinstance(reason, PyTritonClientInferenceServerError) and reason.failure is Failure.MALFORMED:
        with_path = _WITH_PATH.fullmatch(urls)
        prefix = f" The path of the URL, {with_path[1]!r}, is put before Triton's own." if with_path else ""
        return server_error(f"{why}.{prefix} {_ADVICE}", Failure.MALFORMED)
    return PyTritonClientTimeoutError(f"{why}. {_ADVICE}")
