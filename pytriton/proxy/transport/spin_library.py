"""The native library that spins without the interpreter, so that other threads can run Python meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
from typing import Any

_LIBRARY = "lib/libpytriton_spin.so"


def _load() -> Any:
    """Returns the library; None if it is missing."""
    import pytriton.proxy.transport

    for folder in pytriton.proxy.transport.__path__:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(pathlib.Path(folder) / _LIBRARY))  # releases the GIL
            library.PytritonSpinAtWord.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64)
            library.PytritonSpinAtDescriptor.argtypes = (ctypes.c_int, ctypes.c_int64)
            return library
    return None


_library = _load()


def can_spin() -> bool:
    """Returns whether the library is there."""
    return _library is not None


def spin_at_word(address: int, seen: int, end_ns: int) -> bool:
    """Spins until a 32-bit word in memory is no longer ``seen``, or until a time.

    Args:
        address: The word's address.
        seen: Its last known value.
        end_ns: When to stop, on the clock of ``time.monotonic_ns()``.

    Returns:
        Whether other threads have kept the processor for long.
    """
    return bool(_library.PytritonSpinAtWord(address, seen, end_ns))


def spin_at_descriptor(fd: int, end_ns: int) -> bool:
    """Spins until a file descriptor is readable, or until a time; see `spin_at_word`."""
    return bool(_library.PytritonSpinAtDescriptor(fd, end_ns))
