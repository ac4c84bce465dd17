"""The exit of a worker process: performs Python's exit steps without waiting for threads of the model."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import io
import os
import pathlib
import stat
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from pytriton.proxy.worker.threads import MainThread
from pytriton.utils.error_text import traceback_of

HANDLERS_TIMEOUT_S = 5.0
"""Time limit for exit handlers and finalizers, in seconds."""

_POOLS_TIMEOUT_S = 1.0
_FILES_TIMEOUT_S = 1.0  # for files to be written, if a handler did not return
_BUSY_TIMEOUT_S = 1.0  # for the main thread to become free, if a call did not end in time
_STDERR_FD = 2
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def exit_process(main_thread: MainThread, release: Callable[[], bool]) -> NoReturn:
    """Exits this process in an orderly way: runs exit handlers and finalizers, and writes buffered files.

    Neither a handler that fails or does not return in time nor a thread keeps the process alive.

    Args:
        main_thread: Runs the handlers, as when Python exits.
        release: Drops the references to the model, after the exit handlers; returns whether it has been deleted.
    """
    try:
        _flush_streams()
        _run_for(_POOLS_TIMEOUT_S, _run_pool_handlers)
        main_thread.call(functools.partial(_run_handlers, release), _BUSY_TIMEOUT_S, HANDLERS_TIMEOUT_S)
        _flush_streams()
    except TimeoutError as error:
        _tell(f"Exit handlers of the model did not run to their end: {error}.\n")
        _run_for(_FILES_TIMEOUT_S, _flush_files)
    except Exception as error:
        _tell(f"Exit handlers of the model were not run: {error!r}.\n")
    finally:
        os._exit(0)


def exit_uncaught(error: BaseException) -> NoReturn:
    """Exits this process because of an exception in its main thread, like Python, but without waiting for threads.

    Args:
        error: The exception; the status of a SystemExit becomes that of the process.
    """
    status = 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    else:
        _tell(f"{traceback_of(error, error.__traceback__)}\n")
    try:
        # This thread exits the process even if a handler hangs.
        ending = threading.Timer(HANDLERS_TIMEOUT_S, os._exit, [status])
        ending.daemon = True
        ending.start()
        atexit._run_exitfuncs()
        _flush_streams()
    finally:
        os._exit(status)


def _run_for(timeout_s: float, function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function, name="pytriton-exit", daemon=True)
    thread.start()
    thread.join(timeout_s)


def _run_pool_handlers() -> None:
    """Lets the pools of concurrent.futures finish their work, which Python does before it calls exit handlers."""
    for handler in reversed(getattr(threading, "_threading_atexits", [])):
        with contextlib.suppress(Exception):
            handler()


def _run_handlers(release: Callable[[], bool]) -> None:
    with contextlib.suppress(BaseException):  # printed already
        atexit._run_exitfuncs()
    # Searching all objects takes a while, so it is only done if necessary.
    if not release():
        gc.collect()
    if _has_files_to_write():
        _flush_files()
    ctypes.CDLL(None).fflush(None)  # output of C libraries


def _has_files_to_write() -> bool:
    """Returns whether files or pipes are open for writing, besides the standard streams."""
    return any(_is_file_to_write(int(entry.name)) for entry in pathlib.Path("/proc/self/fd").iterdir())


def _is_file_to_write(fd: int) -> bool:
    try:
        status = os.fstat(fd)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # it is closed
        return False
    is_file = stat.S_ISREG(status.st_mode) and status.st_nlink > 0  # shared memory has no name
    return fd > _STDERR_FD and access != os.O_RDONLY and (is_file or stat.S_ISFIFO(status.st_mode))


def _flush_files() -> None:
    """Flushes files: Python does so when it clears modules, which is skipped here because threads may use them."""
    for each in gc.get_objects():
        if type(each) in _FILES:
            with contextlib.suppress(Exception):  # it may be closed
                each.flush()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the model may have replaced it
            stream.flush()


def _tell(text: str) -> None:
    """Writes to stderr, bypassing its buffer, whose lock a hanging handler may hold."""
    with contextlib.suppress(OSError):
        os.write(_STDERR_FD, text.encode())
