"""Workarounds for bugs of Triton, each with the version that fixed the bug.

A comment ``Workaround for Triton (NAME): ...`` marks the code. The C++ half learns from the environment variable
`VARIABLE` which of them the server needs.
"""

from __future__ import annotations

import enum

from pytriton.server.version import ServerVersion

VARIABLE = "PYTRITON_WORKAROUNDS"
"""Environment variable with the names of the workarounds that the server needs, separated by commas; all if unset."""


class Workaround(enum.Enum):
    """The workarounds, by the names that comments and the C++ half use.

    Those without a version are not known to be fixed.
    """

    CACHED_ERRORS = "cached-errors", None
    """A cached error is served as a response without outputs."""

    CLASSIFIED_BYTES = "classified-bytes", ServerVersion(2, 59, 1)
    """Classification of a BYTES output divides by zero (CVE-2025-23321)."""

    CONTENT_LENGTHS = "content-lengths", None
    """The HTTP front end trusts a Content-Length that is not that of the body, and allocates that many bytes."""

    DEEP_STACKS = "deep-stacks", ServerVersion(2, 59, 1)
    """Large forms and nested JSON overflow the stack (CVE-2025-23310, CVE-2025-23311, CVE-2025-23325)."""

    ENDING_STREAMS = "ending-streams", None
    """A response in the moment in which its gRPC stream ends stops all streams, or crashes the server."""

    FAILED_WARMUPS = "failed-warmups", None
    """A failing warm-up may crash the server."""

    GRPC_CANCELLATION = "grpc-cancellation", ServerVersion(2, 60)
    """Requests that are cancelled at a certain moment crash the gRPC front end.

    Fixed step by step: pull requests 7840, 8078 and 8220 of triton-inference-server/server, and CVE-2025-23322.
    """

    LATE_RESPONSES = "late-responses", ServerVersion(2, 53)
    """A response to a client that is disconnecting may crash the server (pull request 7840 of the server)."""

    LOST_RESPONSES = "lost-responses", None
    """The HTTP front end drops responses that do not fit into the buffer of a socket."""

    LOST_WAKE_UPS = "lost-wake-ups", None
    """A request to a model with a queue policy may wait 500 ms because the batcher is not woken."""

    MUTUAL_TLS_FLAG = "mutual-tls-flag", None
    """The flag for mutual TLS turns TLS on even if it is false."""

    TRACES = "traces", None
    """The server crashes under load with every request traced: a trace ends while the backend reports to it."""

    TRANSFER_SIZE = "transfer-size", None
    """The HTTP front end reads 4 KiB and writes 16 KiB at a time; the build raises both in the bundled executable."""

    UNCHANGED_MODELS = "unchanged-models", None
    """A model that is loaded again with the same configuration counts as unchanged, whatever its files."""

    UNSETTLED_MODELS = "unsettled-models", None
    """Unloading or replacing a model right after it was loaded may crash the server."""

    def __init__(self, key: str, mended_in: ServerVersion | None) -> None:
        self.key = key
        """The name."""
        self.mended_in = mended_in
        """The first version that does not need it."""

    def is_needed(self, version: ServerVersion | None) -> bool:
        """Returns whether a server needs it; a server of unknown version does.

        Examples:
            >>> Workaround.LATE_RESPONSES.is_needed(ServerVersion(2, 51))
            True
            >>> Workaround.LATE_RESPONSES.is_needed(ServerVersion(2, 71))
            False
        """
        return version is None or self.mended_in is None or version < self.mended_in


def needed(version: ServerVersion | None) -> str:
    """Returns the value of `VARIABLE` for a server."""
    return ",".join(each.key for each in Workaround if each.is_needed(version))
