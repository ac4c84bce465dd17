"""Messages of service channels: Python and C++ against each other."""

from __future__ import annotations

import ctypes
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import integers, texts
from peer_codecs import decode_call, encode_reply

from pytriton.exceptions import PyTritonInferenceError
from pytriton.proxy.services.messages import InferenceCall, encode_call, write_call
from pytriton.proxy.wire.encoding import MessageReader, ProtocolError, TensorLocation
from pytriton.proxy.wire.service import (
    ON_DEVICE,
    InferenceCallInput,
    InferenceReplyMessage,
    InferenceReplyOutput,
    LogLevel,
    MetricKind,
    MetricMessage,
    MetricOperation,
    ModelMessage,
    ModelOperation,
    decode_reply,
    encode_log,
    encode_metric,
    encode_model,
    read_reply,
)

CALL, REPLY, LOG, MODEL, METRIC = range(5, 10)
DATA_SIZE = 1000

settings = hypothesis.settings(deadline=None, max_examples=100, suppress_health_check=[hypothesis.HealthCheck.too_slow])

small = st.integers(0, 500)
floats = st.floats(allow_nan=False)
parameters = st.dictionaries(texts, st.one_of(texts, integers, st.booleans(), floats), max_size=4)
shapes = st.lists(integers, max_size=4).map(tuple)
inputs = st.builds(
    InferenceCallInput,
    texts,
    integers.map(lambda datatype: datatype & ~ON_DEVICE),
    st.builds(TensorLocation, small, small, shapes),
) | st.builds(
    InferenceCallInput,
    texts,
    integers.map(lambda datatype: datatype | ON_DEVICE),
    st.builds(TensorLocation, small, integers, shapes),
)
calls = st.builds(
    InferenceCall,
    texts,
    st.just({}),
    integers,
    st.none() | st.lists(texts, max_size=3),
    texts,
    st.integers(0, 2**64 - 1) | st.text(min_size=1),
    integers,
    integers,
    integers,
    parameters,
    integers,
    texts,
    st.binary(max_size=20),
)
responses = st.builds(
    InferenceReplyMessage,
    st.booleans(),
    st.just(True),
    st.none(),
    texts,
    integers,
    texts,
    parameters,
    st.lists(st.builds(InferenceReplyOutput, texts, integers, integers, integers, shapes), max_size=4),
)
failures = st.builds(
    InferenceReplyMessage, st.booleans(), st.just(False), st.builds(PyTritonInferenceError, texts, integers)
)
ends = st.builds(InferenceReplyMessage, st.just(True), st.just(False))
files = st.lists(st.tuples(texts, small, small), max_size=3)
models = st.builds(ModelMessage, st.sampled_from(ModelOperation), texts, integers, texts, files)
metrics = st.builds(
    MetricMessage,
    st.sampled_from(MetricOperation),
    integers,
    st.sampled_from(MetricKind),
    floats,
    texts,
    texts,
    st.dictionaries(texts, texts, max_size=3),
    st.lists(floats, max_size=3),
)


def recode(library: ctypes.CDLL, kind: int, data: bytes) -> bytes:
    """The message as the C++ half writes it, after it has read it."""
    target = ctypes.create_string_buffer(len(data) + 1000)
    size = library.wire_recode(kind, data, len(data) + DATA_SIZE, target, len(target))
    if size < 0:
        raise ProtocolError(target.raw[:-size].decode())
    return target.raw[:size]


def reader_of(data: bytes) -> MessageReader:
    return MessageReader(data, 0, len(data) + DATA_SIZE)


def comparable(reply: InferenceReplyMessage) -> Any:
    error = reply.error and (reply.error.message, reply.error.code)
    return {**vars(reply), "error": error}


@settings
@given(calls, st.lists(inputs, max_size=3))
def test_a_call_is_read_as_it_was_written(
    library: ctypes.CDLL, call: InferenceCall, given_inputs: list[InferenceCallInput]
) -> None:
    assert call.batch is not None
    data = encode_call(call, given_inputs, call.batch).to_bytes()
    assert recode(library, CALL, data) == data
    assert write_call(call, given_inputs, call.batch) == data
    assert decode_call(reader_of(data)) == (call, given_inputs)


@settings
@given(st.one_of(responses, failures, ends))
def test_a_reply_is_read_as_it_was_written(library: ctypes.CDLL, reply: InferenceReplyMessage) -> None:
    data = encode_reply(reply).to_bytes()
    assert recode(library, REPLY, data) == data
    assert comparable(decode_reply(reader_of(data))) == comparable(reply)
    assert comparable(read_reply(data)) == comparable(reply)


ones = st.builds(InferenceReplyOutput, texts, integers, integers, integers, shapes)


@settings
@given(st.lists(ones, min_size=2, max_size=4), st.lists(texts, min_size=4, max_size=4), st.booleans(), st.data())
def test_replies_of_a_model_are_read_one_by_one(
    outputs: list[InferenceReplyOutput], request_ids: list[str], final: bool, data: st.DataObject
) -> None:
    """They are read by what the ones before had in common, also if bytes of them have been changed."""
    for output, request_id in zip(outputs, request_ids, strict=False):
        written = bytearray(
            encode_reply(InferenceReplyMessage(final, True, None, "m", 1, request_id, {}, [output])).to_bytes()
        )
        if data.draw(st.booleans()):
            written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
        message = bytes(written)
        try:
            expected = decode_reply(MessageReader(message, 0, len(message)))
        except ProtocolError:
            with pytest.raises(ProtocolError):
                read_reply(message)
        else:
            assert comparable(read_reply(message)) == comparable(expected)


@settings
@given(st.sampled_from(LogLevel), texts, texts, integers)
def test_a_log_line_is_read_as_it_was_written(
    library: ctypes.CDLL, level: LogLevel, message: str, file: str, line: int
) -> None:
    data = encode_log(level, message, file, line).to_bytes()
    assert recode(library, LOG, data) == data


@settings
@given(models)
def test_a_model_command_is_read_as_it_was_written(library: ctypes.CDLL, message: ModelMessage) -> None:
    data = encode_model(message).to_bytes()
    assert recode(library, MODEL, data) == data


@settings
@given(metrics)
def test_a_metric_command_is_read_as_it_was_written(library: ctypes.CDLL, message: MetricMessage) -> None:
    data = encode_metric(message).to_bytes()
    assert recode(library, METRIC, data) == data


@settings
@given(st.sampled_from([CALL, REPLY]), st.integers(0, 2**64 - 1))
def test_python_reads_what_cpp_wrote_and_writes_the_same_bytes(library: ctypes.CDLL, kind: int, seed: int) -> None:
    made = ctypes.create_string_buffer(1 << 16)
    data = made.raw[: library.wire_make(kind, seed, DATA_SIZE, made, len(made))]
    data = made.raw[: len(data)]
    if kind == CALL:
        call, given_inputs = decode_call(reader_of(data))
        assert call.batch is not None
        assert encode_call(call, given_inputs, call.batch).to_bytes() == data
    else:
        assert encode_reply(decode_reply(reader_of(data))).to_bytes() == data


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (DATA_SIZE, 1), (0, DATA_SIZE + 1), (1, -1), (2**62, 2**62)])
def test_file_contents_outside_of_a_message_are_refused(library: ctypes.CDLL, offset: int, size: int) -> None:
    data = encode_model(ModelMessage(ModelOperation.LOAD, "m", files=[("1/model.py", offset, size)])).to_bytes()
    with pytest.raises(ProtocolError, match="a file lies outside its message"):
        recode(library, MODEL, data)


@pytest.mark.parametrize("value", [True, 1, 1.0, "1"])
def test_parameters_keep_their_types(library: ctypes.CDLL, value: Any) -> None:
    data = encode_call(InferenceCall("m", {}, parameters={"key": value}), [], 0).to_bytes()
    call, _ = decode_call(reader_of(recode(library, CALL, data)))
    assert type(call.parameters["key"]) is type(value)
    assert call.parameters["key"] == value
