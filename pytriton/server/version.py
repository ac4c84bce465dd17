"""The version of a Triton server."""

from __future__ import annotations

import logging
import pathlib
import re
from typing import NamedTuple

LOGGER = logging.getLogger(__name__)

VERSION_FILE = "TRITON_VERSION"
"""The file in a server's folder that holds its version, in NVIDIA's containers as in the bundled server."""

_VERSION = re.compile(r"\s*(\d+)\.(\d+)(?:\.(\d+))?")


class ServerVersion(NamedTuple):
    """The version of a Triton server; a later one is greater.

    Examples:
        >>> ServerVersion.parse("2.59.1") < ServerVersion.parse("2.60.0")
        True
        >>> str(ServerVersion.parse("2.71.0dev"))
        '2.71.0'
    """

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        """Returns it as the server itself reports it."""
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> ServerVersion:
        """Reads a version; what follows the third number is ignored.

        Raises:
            ValueError: It does not begin with two numbers.
        """
        match = _VERSION.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not the version of a Triton server, like '2.51.0'.")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))


def version_of(folder: pathlib.Path) -> ServerVersion | None:
    """Returns the version of the server in a folder, before it is started; None if the folder does not record it."""
    file = folder / VERSION_FILE
    try:
        return ServerVersion.parse(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    except ValueError as error:
        LOGGER.warning("%s is ignored: %s", file, error)
        return None
