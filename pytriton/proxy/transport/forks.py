"""Counts the forks that led to this process, so that a forked process can be detected."""

from __future__ import annotations

import logging
import os
from typing import NoReturn

LOGGER = logging.getLogger(__name__)

_EXIT_STATUS = 1


class _Forks:
    count = 0

    def increment(self) -> None:
        self.count += 1


FORKS = _Forks()
"""Its `count` is higher in a child process than in its parent."""

os.register_at_fork(after_in_child=FORKS.increment)


def exit_fork(model: str) -> NoReturn:
    """Exits a process that an inference callable has forked and that returned from the callable.

    Its parent responds to the requests, and owns the shared memory and the connections.
    """
    LOGGER.error(
        "A process that the inference callable of model %r forked has left the callable, and exits here: exit in the "
        "callable, with os._exit.",
        model,
    )
    os._exit(_EXIT_STATUS)
