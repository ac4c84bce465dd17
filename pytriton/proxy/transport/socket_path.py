"""The limit on the path of a Unix socket."""

from __future__ import annotations

import pathlib

from pytriton.exceptions import PyTritonBadParameterError

_MAX_SOCKET_PATH = 107  # bytes in sockaddr_un


def check_socket_path(path: pathlib.Path) -> None:
    """Checks that a path is short enough for a socket.

    Raises:
        PyTritonBadParameterError: The path is too long.
    """
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise PyTritonBadParameterError(
            f"The path {path} is too long for a socket, whose path may have {_MAX_SOCKET_PATH} bytes: choose "
            "another folder by workspace= or by the environment variable PYTRITON_HOME."
        )
