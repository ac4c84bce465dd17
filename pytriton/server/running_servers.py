"""Finds the running servers of this user on this machine, with their tokens.

A server's address and token are stored in its workspace, in a file that only its owner can read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

from pytriton.utils.workspace import workspaces_in_use

_FILE = "server.json"


@dataclasses.dataclass(frozen=True)
class RunningServer:
    """A running server.

    Attributes:
        pid: The process that started it.
        urls: Where it is reached from this machine, the first choice first.
        token: The token that its restricted endpoints require.
    """

    pid: int
    urls: Sequence[str]
    token: str


def publish(server: RunningServer, workspace: pathlib.Path) -> None:
    """Publishes a server's address and token until its workspace is removed.

    Args:
        server: The server.
        workspace: The folder of its workspace.
    """
    path = workspace / f"{_FILE}.new"
    with contextlib.suppress(OSError):  # on a full disk, the server will not be found
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(server), file)
        path.replace(workspace / _FILE)


def running_servers() -> list[RunningServer]:
    """Returns the running servers of this user whose workspaces are in the usual place."""
    found = [_read(folder / _FILE) for folder in workspaces_in_use()]
    return [server for server in found if server is not None]


def _read(path: pathlib.Path) -> RunningServer | None:
    try:
        return RunningServer(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # of another version, or not ready yet
        return None
