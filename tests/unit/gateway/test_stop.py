"""Stop sequences."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from pytriton.gateway.openai.stop import StopSequences

letters = st.text("ab", max_size=12)


@given(pieces=st.lists(letters), sequences=st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_pieces_contain_the_text_before_the_first_sequence(pieces, sequences):
    stop = StopSequences(sequences)
    shown = ""
    for piece in pieces:
        shown += stop.add(piece)
    shown += stop.rest()

    text = "".join(pieces)
    ends = [text.index(sequence) for sequence in sequences if sequence in text]
    assert stop.found == bool(ends)
    if not ends:
        assert shown == text
    else:
        # A sequence that is complete ends the text, also where a longer one that began before it might have come.
        assert text.startswith(shown)
        assert not any(sequence in shown for sequence in sequences)
        assert any(text[len(shown) :].startswith(sequence) for sequence in sequences)


def test_nothing_is_held_back_unnecessarily():
    stop = StopSequences(["END"])
    assert stop.add("text") == "text"
    assert stop.add(" E") == " "
    assert stop.add("nd") == "End"


def test_long_sequences_take_no_more_work_than_short_ones():
    assert lines_run("a" * 1000) == lines_run("ab")


def lines_run(sequence):
    """Returns how many lines of Python a piece of text takes."""
    stop, lines = StopSequences([sequence]), 0

    def count(*_):
        nonlocal lines
        lines += 1
        return count

    sys.settrace(count)
    try:
        stop.add("x" * 2000)
    finally:
        sys.settrace(None)
    return lines
