"""Suggestions for names that are misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to a name, if any is similar."""
    by_folded = {each.casefold(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), by_folded, 1)
    return by_folded[near[0]] if near else None
