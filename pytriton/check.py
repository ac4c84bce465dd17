"""Checks an installation; ``python -m pytriton.check`` is the command ``pytriton check``."""

from __future__ import annotations

import sys

from pytriton.cli.diagnosis import Finding, examine
from pytriton.cli.main import main

__all__ = ["Finding", "examine"]

if __name__ == "__main__":
    sys.exit(main(["check", *sys.argv[1:]]))
