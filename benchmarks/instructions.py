"""Counts Python's own instructions, which do not depend on the machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def python_instructions(function: Callable[[], object]) -> int:
    """Counts Python's own instructions in a call."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before, has_collector = sys.gettrace(), gc.isenabled()
    gc.disable()  # its callbacks would be counted
    try:
        for _ in range(2):  # the first call may have been compiled without a trace
            count = 0
            sys.settrace(trace)
            try:
                function()
            finally:
                sys.settrace(before)
    finally:
        if has_collector:
            gc.enable()
    return count
