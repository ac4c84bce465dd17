"""JSON in pieces: one call for a large body would hold the GIL, and keep the event loop from all other requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pytriton.client.core.inputs import Array

PIECE = 1 << 16
"""Values, or bytes of JSON, that are handled at a time."""

_WINDOW = 1 << 18  # bytes that are looked through at a time
_MAX_DEPTH = 12  # of values that are larger than a window
_NAME = re.compile(rb'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:', re.DOTALL)
_SPACE = b" \t\n\r"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(body: bytes) -> Any:
    """Parses JSON.

    Raises:
        msgspec.DecodeError: It is none.
        RecursionError: It is nested too deeply.
    """
    return _value(body, 0, len(body), _MAX_DEPTH)


def encode_array(array: Array, values_of: Callable[[Array], Any]) -> msgspec.Raw:
    """Encodes an array as JSON.

    Args:
        array: The array.
        values_of: Converts a part of it to what JSON is made of.
    """
    return msgspec.Raw(b"".join(_encoded(array, values_of)))


def drop(value: Any) -> None:
    """Empties large lists piece by piece, since to free them takes long as well."""
    if isinstance(value, dict):
        for each in value.values():
            drop(each)
    elif isinstance(value, list):
        if value and isinstance(value[0], dict | list) and len(value) <= PIECE:
            for each in value:
                drop(each)
        while len(value) > PIECE:
            del value[-PIECE:]


def _encoded(array: Array, values_of: Callable[[Array], Any]) -> Iterator[bytes]:
    if array.size <= PIECE or not array.ndim:
        yield _encode(values_of(array))
        return
    rows = max(1, PIECE * len(array) // array.size)
    opening = b"["
    for start in range(0, len(array), rows):
        yield opening
        opening = b","
        if rows == 1:
            yield from _encoded(array[start], values_of)
        else:
            yield _encode(values_of(array[start : start + rows]))[1:-1]
    yield b"]"


def _value(body: bytes, start: int, end: int, depth: int) -> Any:
    """Parses a value that may have space around it."""
    if end - start <= _WINDOW:
        return _decode(body[start:end])
    start, end = _trimmed(body, start, end)
    is_list, is_object = body[start : start + 1] == b"[", body[start : start + 1] == b"{"
    if not (is_list or is_object):
        return _decode(body[start:end])
    if body[end - 1 : end] != (b"]" if is_list else b"}"):
        raise msgspec.DecodeError("JSON is malformed: a list or an object does not end")
    if not depth:
        raise RecursionError
    if _trimmed(body, start + 1, end - 1)[0] == end - 1:
        return [] if is_list else {}
    if is_list:
        values: list[Any] = []
        for first, last, is_single in _parts(body, start + 1, end - 1):
            if is_single:
                values.append(_value(body, first, last, depth - 1))
            else:
                values += _decode(b"[%b]" % body[first:last])
        return values
    fields: dict[str, Any] = {}
    for first, last, is_single in _parts(body, start + 1, end - 1):
        name = _NAME.match(body, first, last) if is_single else None
        if name is None:
            fields |= _decode(b"{%b}" % body[first:last])
        else:
            fields[_decode(name[1])] = _value(body, name.end(), last, depth - 1)
    return fields


def _parts(body: bytes, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yields the parts of a list or an object, between commas of its own, and whether a part is one large value."""
    first, state = start, _State()
    for at in range(start, end, _WINDOW):
        commas = _commas(body, at, min(end, at + _WINDOW), state)
        for comma in dict.fromkeys((commas[0], commas[-1])) if len(commas) else ():
            yield _checked(body, first, comma)
            first = comma + 1
    yield _checked(body, first, end)


def _checked(body: bytes, first: int, last: int) -> tuple[int, int, bool]:
    if last - first <= _WINDOW and not body[first:last].strip(_SPACE):
        raise msgspec.DecodeError("JSON is malformed: a value is missing beside a comma")
    return first, last, last - first > _WINDOW


class _State:
    """What goes on from window to window."""

    def __init__(self) -> None:
        self.in_text = 0
        self.depth = 0
        self.backslashes = 0  # at the end


def _commas(body: bytes, start: int, end: int, state: _State) -> Any:
    """Returns the positions of the commas that are within no text, list or object of this window."""
    window = np.frombuffer(body, np.uint8, end - start, start)
    quotes = window == ord('"')
    _leave_out_escaped(window, quotes, state)
    in_text = np.bitwise_xor.accumulate(quotes.view(np.uint8)) ^ np.uint8(state.in_text)
    state.in_text = int(in_text[-1])
    lower = window | 0x20  # brackets become braces
    steps = (lower == ord("{")).view(np.int8) - (lower == ord("}")).view(np.int8)
    steps[in_text.view(bool)] = 0
    depths = np.cumsum(steps, dtype=np.int32) + state.depth
    state.depth = int(depths[-1])
    return np.flatnonzero((window == ord(",")) & (depths == 0) & (in_text == 0)) + start


def _leave_out_escaped(window: Array, quotes: Array, state: _State) -> None:
    is_other = window != ord("\\")
    if not state.backslashes and is_other.all():
        return
    # Of each position, the last one before it that is no backslash: between them are backslashes only.
    others = np.where(is_other, np.arange(len(window)), -1 - state.backslashes)
    last = np.maximum.accumulate(others)
    at = np.flatnonzero(quotes)
    before = np.where(at > 0, last[at - 1], -1 - state.backslashes)
    quotes[at[(at - 1 - before) % 2 == 1]] = False
    state.backslashes = int(len(window) - 1 - last[-1])


def _trimmed(body: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and body[start] in _SPACE:
        start += 1
    while end > start and body[end - 1] in _SPACE:
        end -= 1
    return start, end


class Slices(NamedTuple):
    """A large list in pieces."""

    values: list[Any]
    rows: int

    @classmethod
    def of(cls, values: Any) -> Slices | None:
        """Returns the pieces of a list that has too many values, nested ones included, to be handled at once."""
        if not isinstance(values, list):
            return None
        per_row, row = 1, values[0] if values else None
        while isinstance(row, list):
            per_row *= max(1, len(row))
            row = row[0] if row else None
        rows = max(1, PIECE // per_row)
        return cls(values, rows) if len(values) > rows else None

    def __iter__(self) -> Iterator[list[Any]]:
        """Iterates over the pieces."""
        return (self.values[at : at + self.rows] for at in range(0, len(self.values), self.rows))
