"""A full disk, for this process."""

from __future__ import annotations

import contextlib
import errno
import io
import os

import pytest


class _FileOnFullDisk(io.FileIO):
    def __init__(self, file, mode, **_settings):
        super().__init__(file, mode)

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def full_disk():
    """Lets this process read files of models, but not write them, as on a full disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fdopen", _FileOnFullDisk)
        yield
