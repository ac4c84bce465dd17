"""The outputs that a model declares, and warnings about those that are dropped from its responses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

LOGGER = logging.getLogger(__name__)


class DeclaredOutputs:
    """The outputs that a model's configuration declares.

    Args:
        model: The model's name.
        names: The outputs' names.
    """

    def __init__(self, model: str, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._model = model
        self._reported: set[str] = set()
        self._lock = threading.Lock()  # senders respond from any thread

    def warn_of_others(self, names: Iterable[str]) -> None:
        """Logs which of the names are not declared, once for each."""
        with self._lock:
            others = [name for name in dict.fromkeys(names) if name not in self.names | self._reported]
            self._reported.update(others)
        for name in others:
            LOGGER.warning(
                "Model %r returned an output %r that its configuration does not declare: its outputs are %s. It is "
                "dropped. This warning is logged once.",
                self._model,
                name,
                ", ".join(map(repr, sorted(self.names))),
            )
