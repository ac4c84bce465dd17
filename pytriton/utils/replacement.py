"""Replaces files, so that nobody reads them half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, data: bytes, prepare: Callable[[Path], None] | None = None) -> None:
    """Creates a file, or replaces the one that exists.

    Args:
        path: The file.
        data: Its new content.
        prepare: Called with the new file before it takes its place, to set its mode, which is 0600 otherwise.

    Raises:
        OSError: It cannot be written; the earlier one is left.
    """
    # Programs that search the folder for names like *.json must not find the new file yet.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if prepare is not None:
            prepare(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
