"""Messages of batches, results and registrations: Python and C++ against each other; both reject nonsense."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import LEAST, MOST, batches, integers, messages, responses, results
from peer_codecs import decode_batch, decode_responses, decode_result, encode_batch, encode_registration

from pytriton.proxy.wire.encoding import (
    ABSENT,
    ALIGNMENT,
    MessageReader,
    ParameterValue,
    ProtocolError,
    TensorColumn,
    TensorLocation,
)
from pytriton.proxy.wire.inference import (
    BatchMessage,
    RequestFailure,
    RequestMetadata,
    ResponsesMessage,
    ResultMessage,
    encode_responses,
    encode_result,
    read_batch,
    read_metadata,
)
from pytriton.proxy.wire.notification import NOTIFICATION, PROTOCOL_VERSION
from pytriton.proxy.wire.registration import (
    AdmissionMessage,
    RegistrationMessage,
    decode_admission,
    decode_registration,
    encode_admission,
)

# The library is the session's, and holds no state.
settings = hypothesis.settings(deadline=None, max_examples=150, suppress_health_check=[hypothesis.HealthCheck.too_slow])

KINDS = [BatchMessage, ResultMessage, RegistrationMessage, AdmissionMessage, ResponsesMessage]
WITH_DATA = {0: decode_batch, 1: decode_result, 4: decode_responses}


def encode(message: Any) -> bytes:
    """The message without its data."""
    match message:
        case BatchMessage():
            return encode_batch(message).to_bytes()
        case ResultMessage():
            return encode_result(message).to_bytes()
        case ResponsesMessage():
            return encode_responses(message).to_bytes()
        case RegistrationMessage():
            return encode_registration(message)
        case _:
            return encode_admission(message)


def decode(kind: int, data: bytes, data_size: int = 0) -> Any:
    if kind in WITH_DATA:
        return WITH_DATA[kind](MessageReader(data, 0, len(data) + data_size))
    return decode_registration(data) if kind == 2 else decode_admission(data)


def comparable(value: Any) -> Any:
    """The value, such that it equals another one only when types and the bits of floats agree."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, bool | int | str | None):
        return type(value), value
    if isinstance(value, dict):
        return [(key, comparable(each)) for key, each in value.items()]
    if dataclasses.is_dataclass(value):
        return [comparable(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [comparable(each) for each in value]


def recode(library: ctypes.CDLL, kind: int, data: bytes, data_size: int = 0) -> bytes:
    """The message as the C++ half writes it, after it has read it."""
    size = len(data) + 1000
    capacity = 0
    while size > capacity:  # texts that lie in one another, as in nonsense, take more room on their own
        capacity = size
        target = ctypes.create_string_buffer(capacity)
        size = library.wire_recode(kind, data, len(data) + data_size, target, capacity)
    if size < 0:
        raise ProtocolError(target.raw[:-size].decode())
    return target.raw[:size]


def test_both_halves_have_the_same_version(library: ctypes.CDLL) -> None:
    assert library.wire_version() == PROTOCOL_VERSION


def test_a_notification_is_four_words() -> None:
    assert NOTIFICATION.size == 32
    assert NOTIFICATION.unpack(NOTIFICATION.pack(1, LEAST, MOST, -1)) == (1, LEAST, MOST, -1)


@settings
@given(messages())
def test_python_decodes_its_own_messages(drawn: tuple[Any, int]) -> None:
    message, data_size = drawn
    data = encode(message)
    assert len(data) % ALIGNMENT == 0
    assert comparable(decode(KINDS.index(type(message)), data, data_size)) == comparable(message)


@settings
@given(messages())
def test_cpp_reads_what_python_wrote_and_writes_the_same_bytes(library: ctypes.CDLL, drawn: tuple[Any, int]) -> None:
    message, data_size = drawn
    kind = KINDS.index(type(message))
    data = encode(message)
    recoded = recode(library, kind, data, data_size)
    assert comparable(decode(kind, recoded, data_size)) == comparable(message)
    assert recoded == data


@settings
@given(st.integers(0, 4), st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 100, 2**40]))
def test_python_reads_what_cpp_wrote_and_writes_the_same_bytes(
    library: ctypes.CDLL, kind: int, seed: int, data_size: int
) -> None:
    capacity = 1 << 16
    made = ctypes.create_string_buffer(capacity)
    size = library.wire_make(kind, seed, data_size, made, capacity)
    assert size <= capacity
    data = encode(decode(kind, made.raw[:size], data_size))
    assert data == made.raw[:size]
    assert library.wire_is_made(kind, seed, data_size, data, len(data) + data_size)


@settings
@given(st.one_of(batches(100), results(100), responses(100)), st.binary(max_size=40), st.binary(max_size=40))
def test_a_message_may_start_at_any_address(message: Any, before: bytes, behind: bytes) -> None:
    head = encode(message)
    buffer = bytearray(before + head + bytes(100) + behind)
    reader = MessageReader(memoryview(buffer), len(before), len(head) + 100)
    assert comparable(WITH_DATA[KINDS.index(type(message))](reader)) == comparable(message)
    assert reader.data_offset == len(head)


@settings
@given(batches(100))
def test_metadata_of_a_batch_can_be_read_later(message: BatchMessage) -> None:
    data = encode(message) + bytes(100)
    for _ in range(2):  # the second time, it is found among those of late
        head, data_offset, start = read_batch(data)
        some_details = read_metadata(data, head.request_count, start) if start else []
        assert comparable(dataclasses.replace(head, metadata=some_details)) == comparable(message)
        assert data_offset == len(data) - 100


@pytest.mark.parametrize("start", [1, 7, 2**60, -1, LEAST])
def test_metadata_outside_of_a_batch_is_refused(start: int) -> None:
    with pytest.raises(ProtocolError):
        read_batch(words_of(start, 1, 0, 0))
    with pytest.raises(ProtocolError):
        read_metadata(words_of(start, 1, 0, 0), 1, start)


def test_an_unaligned_data_offset_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_batch(struct.pack("<3q", 27, 32, 0) + bytes(8))


def test_a_batch_of_many_requests_with_many_tensors_is_encoded_and_decoded(library: ctypes.CDLL) -> None:
    count = 500
    ragged = [TensorLocation(64 * i, i, (1, *range(i % 7))) if i % 3 else ABSENT for i in range(count)]
    some_details = [RequestMetadata(f"id {i}", [i, 0], {"n": i, "t": "é" * i}) for i in range(count)]
    message = BatchMessage(
        count, list(range(count)), [TensorColumn(i, 11, False, ragged) for i in range(20)], some_details
    )
    data = encode(message)
    assert recode(library, 0, data, 80 * count) == data
    assert decode(0, data, 80 * count) == message


@pytest.mark.parametrize(
    "bits",
    [0x7FF8000000000000, 0x7FF0000000000001, -1, 0x7FF0000000000000, 1, LEAST],
    ids=["nan", "signalling nan", "nan with a payload", "infinity", "denormal", "minus zero"],
)
def test_doubles_keep_their_bits(library: ctypes.CDLL, bits: int) -> None:
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    data = encode(BatchMessage(1, [], [], [RequestMetadata("", None, {"x": value})]))
    assert struct.pack("<q", bits) in data
    assert recode(library, 0, data) == data
    read = decode(0, data).metadata[0].parameters["x"]
    assert struct.unpack("<q", struct.pack("<d", read)) == (bits,)
    assert math.isnan(read) == math.isnan(value)


def test_parameters_keep_their_types(library: ctypes.CDLL) -> None:
    values: dict[str, ParameterValue] = {"bool": True, "int": 1, "double": 1.0, "text": "1"}
    read = decode(0, recode(library, 0, encode(BatchMessage(1, [], [], [RequestMetadata("", None, values)]))))
    assert {key: type(value) for key, value in read.metadata[0].parameters.items()} == {
        "bool": bool,
        "int": int,
        "double": float,
        "text": str,
    }


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    message = ResultMessage(1, 0, 0, [RequestFailure(0, 1, "a\ud800b", "\udcff\ud800")], [])
    assert decode(1, encode(message)).failures == [RequestFailure(0, 1, "a\\ud800b", "\\udcff\\ud800")]


@st.composite
def nonsense(draw: st.DrawFn) -> tuple[bytes, int]:
    """A message with changes in it, and the kind that it was."""
    message, _ = draw(messages())
    data = bytearray(encode(message))
    words = st.one_of(integers, st.integers(-8, 200), st.sampled_from([2**32, 2**61, MOST // 8]))
    for _ in range(draw(st.integers(1, 3))):
        change = draw(st.sampled_from(["word", "word", "word", "byte", "cut", "noise"]))
        if change == "word" and len(data) >= 8:
            struct.pack_into("<q", data, 8 * draw(st.integers(0, min(len(data) // 8, 40) - 1)), draw(words))
        elif change == "byte" and data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[draw(st.integers(0, len(data))) :]
        elif change == "noise":
            data[:] = draw(st.binary(max_size=200))
    return bytes(data), KINDS.index(type(message))


@hypothesis.settings(settings, max_examples=300)
@given(nonsense())
def test_both_halves_refuse_the_same_malformed_messages(library: ctypes.CDLL, drawn: tuple[bytes, int]) -> None:
    data, kind = drawn
    try:
        decode(kind, data)
        refused_by_python = False
    except ProtocolError:
        refused_by_python = True
    try:
        recode(library, kind, data)
        refused_by_cpp = False
    except ProtocolError as error:
        refused_by_cpp = True
        if "a tensor lies outside" in str(error):
            return  # NumPy checks this for Python, when it makes the array
    assert refused_by_python == refused_by_cpp


def words_of(*words: int) -> bytes:
    """A message without texts or data."""
    return struct.pack(f"<{len(words) + 2}q", (len(words) + 2) * 8, (len(words) + 2) * 8, *words)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (0, (0, -1, 0, 0)),
        (0, (0, 2**62, 1, 0)),
        (0, (6, 2**62, 0, 0)),
        (0, (0, 1, 0, -1)),
        (0, (0, 1, 0, 2**62)),
        (0, (0, 2**62, 0, 1, 0, 11, 0)),
        (0, (0, 1, 0, 2**62, 0, 11, 1, -1, 0, -3)),
        (0, (0, 1, 0, 1, 0, 11, 1, -1, 0, 2**62)),
        (0, (0, 1, 0, 1, 0, 11, 1, -1, 0, 1)),
        (0, (6, 1, 0, 0, 0, 0, 2**62, 0)),
        (0, (6, 1, 0, 0, 0, 0, -1, 2**62)),
        (0, (6, 1, 0, 0, 0, 0, -1, -1)),
        (0, (6, 1, 0, 0, -1, 0, -1, 0)),
        (0, (6, 1, 0, 0, 0, -1, -1, 0)),
        (0, (6, 1, 0, 0, 0, 2**62, -1, 0)),
        (0, (5, 1, 0, 0, 0, 0, -1, 0, 0)),
        (0, (7, 1, 0, 0, 0, 0, -1, 0, 0)),
        (0, (2**60, 1, 0, 0, 0, 0, -1, 0, 0)),
        (0, (-1, 1, 0, 0, 0, 0, -1, 0, 0)),
        (1, (1, 0, 0, 2**62, 0)),
        (1, (1, 0, 0, -1, 0)),
        (2, (0, 0, 0, 0, 0)),
        (3, (0, 0, 0, 0, 0, 0, 2**62, 0)),
        (3, (0, 0, 0, 0, 0, 0, 0, -5)),
        (4, (2**62, 0)),
        (4, (-1, 0)),
        (4, (2, 1, 0, 3, 0, 0, 0)),
        (4, (1, 1, 0, 3, 0, 0, 2**62)),
        (4, (1, 1, 0, 3, 0, 0, -1)),
        (4, (1, 1, 0, 3, 0, 0, 1, 0, 11, -1, 0)),
        (4, (1, 1, 0, 3, 0, 0, 1, 0, 11, -1, 0, 2**62)),
        (4, (1, 1, 0, 3, 0, 0, 1, 0, 11, -1, 0, -1)),
        (4, (1, 1, 0, 4, 0, 0, 1, 0, -1, 0, 0, 0)),
    ],
)
def test_counts_that_a_message_cannot_hold_are_refused_at_once(
    library: ctypes.CDLL, kind: int, words: tuple[int, ...]
) -> None:
    with pytest.raises(ProtocolError):
        decode(kind, words_of(*words))
    with pytest.raises(ProtocolError):
        recode(library, kind, words_of(*words))


@pytest.mark.parametrize(
    ("heap", "data", "size"), [(15, 16, 16), (16, 8, 16), (16, 17, 16), (24, 24, 16), (-16, 16, 16), (16, MOST, 16)]
)
def test_parts_outside_of_a_message_are_refused(library: ctypes.CDLL, heap: int, data: int, size: int) -> None:
    message = struct.pack("<2q", heap, data)
    for kind in range(len(KINDS)):
        with pytest.raises(ProtocolError, match=r"parts of a \w+ lie outside"):
            decode(kind, message[:size])
        with pytest.raises(ProtocolError, match=r"parts of a \w+ lie outside"):
            recode(library, kind, message[:size])


@pytest.mark.parametrize("size", [0, 1, 8, 15])
def test_a_message_without_a_header_is_refused(library: ctypes.CDLL, size: int) -> None:
    for kind in range(len(KINDS)):
        with pytest.raises(ProtocolError):
            decode(kind, bytes(size))
        with pytest.raises(ProtocolError):
            recode(library, kind, bytes(size))


def test_tensors_outside_of_a_message_are_refused_by_cpp(library: ctypes.CDLL) -> None:
    for offset, size in [(0, 101), (101, 0), (50, 51), (0, -1), (MOST, MOST), (1, MOST)]:
        data = encode(BatchMessage(1, [], [TensorColumn(0, 11, True, [TensorLocation(offset, size, (1,))])], []))
        with pytest.raises(ProtocolError, match="a tensor lies outside its message"):
            recode(library, 0, data, 100)
