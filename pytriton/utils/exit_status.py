"""Descriptions of exit statuses."""

from __future__ import annotations

import signal


def describe_exit(returncode: int | None) -> str:
    """Describes the signal that killed a process, or the status with which it exited.

    Args:
        returncode: As `subprocess.Popen` has it: minus the number of the signal, or the status.

    Examples:
        >>> describe_exit(-9), describe_exit(1)
        ('was killed by SIGKILL', 'exited with status 1')
    """
    if returncode is None or returncode >= 0:
        return f"exited with status {returncode}"
    return f"was killed by {_name_of(-returncode)}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, of which only the first and the last have names
        return f"signal {number}"
