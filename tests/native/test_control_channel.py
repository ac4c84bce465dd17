"""Control messages of Python and C++ against each other; and the C++ JSON reader."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import admissions, integers

from pytriton.proxy.wire.control import (
    Command,
    CommandMessage,
    CommandReply,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
)

settings = hypothesis.settings(deadline=None, max_examples=100, suppress_health_check=[hypothesis.HealthCheck.too_slow])

texts = st.text() | st.sampled_from(["", "\0", "é", "\N{GRINNING FACE}", "x" * 5000])
orders = st.builds(CommandMessage, st.sampled_from(Command), texts, texts, integers, *[texts] * 6, st.just(b""))
replies = st.builds(CommandReply, texts, texts, texts, st.none() | admissions.filter(lambda each: each.socket))


def returned(function: Any, *arguments: Any, capacity: int = 1 << 17) -> bytes | None:
    """What a function of the library has written, or None when it has refused."""
    target = ctypes.create_string_buffer(capacity)
    size = function(*arguments, target, capacity)
    assert size <= capacity
    return None if size < 0 else target.raw[:size]


@pytest.fixture(scope="session")
def control(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, with the functions of control_channel_library.cc."""
    integer, text = ctypes.c_int64, ctypes.c_char_p
    signatures = {
        "control_command": [integer, integer, ctypes.POINTER(text), ctypes.POINTER(integer), text, integer],
        "control_recode_reply": [text, integer, text, integer],
        "json_text": [text, integer, text, text, integer],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype = integer
        function.argtypes = arguments
    return library


@settings
@given(orders)
def test_python_reads_the_commands_that_cpp_writes(control: ctypes.CDLL, command: CommandMessage) -> None:
    fields = [command.folder, command.model, command.instance, command.config, command.repository, command.backend]
    data = [field.encode() for field in [*fields, command.instance_kind, command.device_id]]
    pointers = (ctypes.c_char_p * len(data))(*data)
    sizes = (ctypes.c_int64 * len(data))(*map(len, data))
    written = returned(control.control_command, command.command, command.version, pointers, sizes)
    assert written == encode_command(command)
    assert decode_command(written) == command


@settings
@given(replies)
def test_cpp_reads_the_replies_that_python_writes(control: ctypes.CDLL, reply: CommandReply) -> None:
    data = encode_reply(reply)
    assert returned(control.control_recode_reply, data, len(data)) == data
    assert decode_reply(data) == reply


@settings
@given(replies, st.data())
def test_truncated_replies_are_refused(control: ctypes.CDLL, reply: CommandReply, data: st.DataObject) -> None:
    frame = encode_reply(reply)
    head = len(encode_reply(CommandReply(reply.error, reply.detail, reply.config)))
    end = data.draw(st.integers(0, len(frame) - 1).filter(lambda size: size != head))
    assert returned(control.control_recode_reply, frame[:end], end) is None


leaves = st.none() | st.booleans() | st.integers() | texts
values = st.recursive(leaves, lambda each: st.lists(each, max_size=4) | st.dictionaries(texts, each, max_size=4))


def all_places(value: Any, path: str = "") -> Any:
    """Paths to all leaves of a value, and the leaves."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name and not name.startswith("#") and not set(name) & {"\n", "\0"}:
                yield from all_places(each, f"{path}{name}\n")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from all_places(each, f"{path}#{number}\n")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


@settings
@given(values, st.booleans(), st.sampled_from([None, 2]))
def test_json_is_read(control: ctypes.CDLL, value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    for path, expected in all_places(value):
        assert returned(control.json_text, text, len(text), path.encode()) == expected.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("text", ["\ud800\u00e9", "\ud800\ud800\udc00", "\udc00\ud800", "\U0001f40d"])
def test_a_lone_surrogate_is_preserved(control: ctypes.CDLL, text: str) -> None:
    written = json.dumps(text).encode()
    read = returned(control.json_text, written, len(written), b"")
    assert read == json.loads(written).encode("utf-8", "surrogatepass")


@settings
@given(values, st.data())
def test_truncated_json_is_refused(control: ctypes.CDLL, value: Any, data: st.DataObject) -> None:
    text = json.dumps([value]).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert returned(control.json_text, cut, len(cut), b"") is None


@pytest.mark.parametrize(
    "text", ["", " ", "{", "}", "[1 2]", '{"a" 1}', "{1: 2}", '"\\u12', '"\\u00gh"', "[" * 1000, "1 1"]
)
def test_malformed_json_is_refused(control: ctypes.CDLL, text: str) -> None:
    assert returned(control.json_text, text.encode(), len(text), b"") is None
