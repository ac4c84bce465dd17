"""The policy by which worker processes are restarted.

The server's backend restarts the processes of models of a repository by the same policy: its build generates
``python_models/supervision_policy.h`` from the same file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytriton.utils.back_off import BackOff

_POLICY: dict[str, Any] = json.loads(Path(__file__).with_name("supervision.json").read_text())

BACK_OFF = BackOff(_POLICY["first_delay_ms"] / 1000, _POLICY["max_delay_ms"] / 1000)
"""The pauses before restarts. The first restart in a row comes without a pause."""

RESET_AFTER_S: float = _POLICY["reset_after_ms"] / 1000
"""A process that has lived for so many seconds is restarted without a pause."""

RESTARTING: str = _POLICY["restarting"]
"""The reason that a model instance gets meanwhile."""


class RestartDelays:
    """The delays before restarts in a row."""

    def __init__(self) -> None:
        self._failures = 0

    def after(self, lived_s: float) -> float:
        """Returns the delay before the next start, in seconds, after a process that has lived for `lived_s`."""
        if lived_s > RESET_AFTER_S:
            self._failures = 0
        delay_s = BACK_OFF.pause_s(self._failures) if self._failures else 0.0
        self._failures += 1
        return delay_s


def restarting_in(delay_s: float) -> str:
    """Describes a restart after a delay, for the log."""
    return f"restarting in {delay_s:g} s" if delay_s else "restarting"
