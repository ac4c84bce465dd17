"""Lets the tests import what lies next to them, and the helpers of the integration tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "integration")]
