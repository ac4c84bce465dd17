"""Keeps threads in native code from aborting the process when the interpreter exits."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading

_FIRST_THAT_HANGS = (3, 14)


def let_threads_hang_at_exit(prefix: str) -> None:
    """Keeps threads that are still inside native code from aborting the process when the interpreter exits.

    Before Python 3.14, a daemon thread that returns from native code while the interpreter exits is ended by unwinding
    its stack. A C++ extension that takes the GIL again in a destructor cannot be unwound, so the C++ runtime aborts the
    process (``terminate called without an active exception``). Such a thread pauses instead, as since Python 3.14.

    Args:
        prefix: The prefix of these threads' names.
    """
    if sys.version_info < _FIRST_THAT_HANGS:
        atexit.register(_pause_instead_of_aborting, prefix)


def _pause_instead_of_aborting(prefix: str) -> None:
    if not any(thread.name.startswith(prefix) for thread in threading.enumerate()):
        return
    with contextlib.suppress(OSError, AttributeError):  # without the shared C++ runtime there is nothing to abort
        runtime = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        set_terminate = runtime._ZSt13set_terminatePFvvE  # std::set_terminate
        set_terminate.argtypes = [ctypes.c_void_p]
        set_terminate.restype = ctypes.c_void_p
        set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
