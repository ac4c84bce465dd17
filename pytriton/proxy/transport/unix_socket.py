"""Listening Unix sockets, whose paths have a maximum length."""

from __future__ import annotations

import pathlib
import socket

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.proxy.transport.forks import close_in_forks

_BACKLOG = 128
_MAX_SOCKET_PATH = 107  # bytes in sockaddr_un


def check_socket_path(path: pathlib.Path) -> None:
    """Checks that a path is short enough for a socket.

    Raises:
        PyTritonBadParameterError: The path is too long.
    """
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise PyTritonBadParameterError(
            f"The path {path} is too long for a socket, which may have {_MAX_SOCKET_PATH} bytes: choose "
            "another folder by workspace= or by the environment variable PYTRITON_HOME."
        )


def listen_at(path: pathlib.Path) -> socket.socket:
    """Returns a SEQPACKET socket that listens at a path.

    Args:
        path: The path, in a folder of mode 0700.

    Raises:
        PyTritonBadParameterError: The path is too long for a socket.
        OSError: The socket cannot be created there.
    """
    check_socket_path(path)
    path.unlink(missing_ok=True)  # left behind by a killed process
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(_BACKLOG)
    close_in_forks(listening)
    return listening
