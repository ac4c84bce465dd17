"""JSON that is parsed and encoded in pieces."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.gateway import large_json

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a,"\\\\[]{}é', max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text('a,"\\\\]', max_size=3), inner, max_size=4),
    max_leaves=30,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "_WINDOW", 16)
    monkeypatch.setattr(large_json, "PIECE", 4)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_pieces_are_parsed_as_the_whole(value: Any, indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    try:
        assert large_json.decode(body) == value
    except RecursionError:
        assert max(body.count(b"["), body.count(b"{")) > 6


@given(values, st.integers(0, 200), st.sampled_from('[]{},:"\\\\ 1a'), st.booleans())
def test_what_is_no_json_is_none_in_pieces(value: Any, at: int, other: str, replaces: bool) -> None:
    text = json.dumps(value)
    at = min(at, len(text))
    body = (text[:at] + other + text[at + replaces :]).encode()
    try:
        expected = msgspec.json.decode(body)
    except msgspec.DecodeError:
        with pytest.raises((msgspec.DecodeError, RecursionError)):
            large_json.decode(body)
        return
    try:
        assert large_json.decode(body) == expected
    except RecursionError:
        assert max(body.count(b"["), body.count(b"{")) > 6


@pytest.mark.parametrize("body", [b"[" + b" " * 40 + b"]", b"{" + b"\n" * 40 + b"}", b' ["' + b"," * 40 + b'"] '])
def test_space_and_long_texts(body: bytes) -> None:
    assert large_json.decode(body) == json.loads(body)


@pytest.mark.parametrize("shape", [(3,), (9,), (1, 9), (9, 1), (2, 3, 5), (0, 9), (9, 0), ()])
def test_arrays_are_encoded_in_pieces(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    raw = large_json.encode_array(array, lambda part: part.tolist())
    assert json.loads(msgspec.json.encode(raw)) == array.tolist()


def test_large_lists_are_emptied() -> None:
    value = {"a": list(range(100)), "b": [[1] * 100], "c": "text"}
    large_json.drop(value)
    assert len(value["a"]) <= 4
    assert len(value["b"][0]) <= 4  # type: ignore[arg-type]
