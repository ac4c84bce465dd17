"""Ends a text at stop sequences, even if they arrive in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopSequences:
    """Ends a text that arrives in pieces before the first of some sequences.

    Args:
        sequences: The sequences; none of them is empty.

    Examples:
        >>> stop = StopSequences(["END"])
        >>> stop.add("one E"), stop.add("ND two"), stop.found
        ('one ', '', True)
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = sequences
        self._held = ""
        self.found = False
        """Whether the text has ended at a sequence."""

    def add(self, piece: str) -> str:
        """Adds a piece, and returns the text that cannot belong to a sequence."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [at for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, sequence) for sequence in self._sequences), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Returns the text that was held back, once the text has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """Returns the number of characters at the end of the text with which the sequence begins."""
    start = max(0, len(text) - len(sequence) + 1)
    while (start := text.find(sequence[0], start)) >= 0:
        if sequence.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
