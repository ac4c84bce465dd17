"""Runs the command line: ``python -m pytriton``."""

from __future__ import annotations

import sys

from pytriton.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
