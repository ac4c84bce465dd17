"""The number of forks that led to this process, by which a forked process knows that it is one."""

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
    """Ends a process that an inference callable has forked, and that returned from it.

    Its parent responds to the requests; shared memory and connections are the parent's, too.
    """
    LOGGER.error(
        "A process that the inference callable of model %r forked has left the callable, and ends here: end it in the "
        "callable, by os._exit.",
        model,
    )
    os._exit(_EXIT_STATUS)
