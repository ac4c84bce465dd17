"""The states of a server."""

from __future__ import annotations

import enum


class ServerState(enum.Enum):
    """The state of a server, as the controller sees it."""

    STOPPED = "stopped"
    STARTING = "starting"
    START_FAILED = "failed to start"
    READY = "ready"
    FAILED = "failed"
    RESTARTING = "restarting"
    STOPPING = "stopping"

    @property
    def has_failed(self) -> bool:
        """Whether the server exited, or became unreachable, without having been stopped."""
        return self in (ServerState.START_FAILED, ServerState.FAILED)
