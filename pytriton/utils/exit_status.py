"""Exit statuses of child processes, and their descriptions."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any


def has_exited(process: subprocess.Popen[Any]) -> bool:
    """Returns whether a process has exited; its status is still to be read by `wait_for_returncode`."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def wait_for_returncode(process: subprocess.Popen[Any]) -> int | None:
    """Waits for the exit of a process.

    Returns:
        Its status, as `describe_exit` takes it. `subprocess.Popen` itself takes an unknown status for 0.
    """
    try:
        end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return process.wait() or None
    process.wait()
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def describe_exit(returncode: int | None) -> str:
    """Describes the signal that killed a process, or the status with which it exited.

    Args:
        returncode: Minus the number of the signal, or the status; None if it is unknown.

    Examples:
        >>> describe_exit(-9), describe_exit(1)
        ('was killed by SIGKILL', 'exited with status 1')
    """
    if returncode is None:
        return "ended with a status that is unknown: the program may ignore SIGCHLD or wait for any child process"
    if returncode >= 0:
        return f"exited with status {returncode}"
    return f"was killed by {_name_of(-returncode)}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, of which only the first and the last have names
        return f"signal {number}"
