"""Processes that tests fork."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def fork(run: Callable[[], int | None]) -> int:
    """Forks a process that calls a function and exits, and returns its PID.

    Args:
        run: Returns the exit status; None means 0. If it fails, that is 1: the process must not go on with the tests.
    """
    child = os.fork()
    if child == 0:
        try:
            os._exit(run() or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child
