"""Unix sockets: listening ones, whose paths have a maximum length, and file descriptors that come over a socket."""

from __future__ import annotations

import array
import pathlib
import socket

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.utils.forks import close_in_forks

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


def receive_fds(connected: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receives a message and the file descriptors that come with it.

    Programs that this process starts do not inherit them, unlike those of ``socket.recv_fds``.

    Args:
        connected: The socket.
        size: The largest size of the message in bytes.
        most: The largest number of descriptors; others are closed.

    Raises:
        OSError: Nothing can be received.
    """
    fds = array.array("i")
    data, ancillary, _, _ = connected.recvmsg(size, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, fds.tolist()
