"""Messages and what they consist of, for hypothesis."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from pytriton.proxy.wire.encoding import ABSENT, DEVICE_LOCATION_SIZE, TensorColumn, TensorLocation
from pytriton.proxy.wire.inference import (
    BatchMessage,
    RequestFailure,
    RequestMetadata,
    RequestOptions,
    ResponseEntry,
    ResponseOutput,
    ResponsesMessage,
    ResultMessage,
)
from pytriton.proxy.wire.registration import AdmissionMessage, ExecutionMode, RegistrationMessage

LEAST, MOST = -(2**63), 2**63 - 1

integers = st.one_of(st.integers(LEAST, MOST), st.sampled_from([0, 1, -1, LEAST, MOST]))
# Any bytes may come from C++, and Python's text holds them all.
texts = st.one_of(
    st.text(),
    st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from(["", "\0", "a\0b\0", "é", "\N{GRINNING FACE}", "x" * 5000]),
)
doubles = integers.map(lambda bits: struct.unpack("<d", struct.pack("<q", bits))[0])
parameters = st.dictionaries(texts, st.one_of(texts, integers, st.booleans(), doubles, st.floats()), max_size=5)
admissions = st.builds(
    AdmissionMessage,
    texts,
    integers,
    st.booleans(),
    st.booleans(),
    st.sampled_from(ExecutionMode),
    integers,
    st.lists(texts, max_size=5),
    st.lists(texts, max_size=5),
)
unsigned = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
numbers = [unsigned] * (len(RequestOptions._fields) - 2)
options = st.builds(RequestOptions, unsigned | texts.filter(bool), *numbers, texts)
metadata = st.builds(
    RequestMetadata,
    texts,
    st.none() | st.lists(integers, max_size=4),
    parameters,
    st.just(RequestOptions()) | options,
)
failures = st.builds(RequestFailure, integers, integers, texts, texts)
registrations = st.builds(RegistrationMessage, texts, texts, integers, texts, texts)


@st.composite
def tensors(draw: st.DrawFn, data_size: int) -> TensorLocation:
    if draw(st.booleans()):
        return draw(st.just(ABSENT) | st.builds(TensorLocation, st.integers(LEAST, -1), integers, st.tuples(integers)))
    offset = draw(st.integers(0, data_size))
    return TensorLocation(offset, draw(st.integers(0, data_size - offset)), tuple(draw(st.lists(integers, max_size=6))))


def on_a_device(data_size: int) -> st.SearchStrategy[TensorLocation]:
    offsets = st.integers(0, data_size - DEVICE_LOCATION_SIZE)
    return st.builds(TensorLocation, offsets, integers, st.lists(integers, max_size=6).map(tuple))


@st.composite
def columns(draw: st.DrawFn, request_count: int, data_size: int) -> list[TensorColumn]:
    drawn = []
    for _ in range(draw(st.integers(0, 4))):
        stacked = draw(st.booleans())
        count = 1 if stacked else request_count
        on_device = stacked and data_size >= DEVICE_LOCATION_SIZE and draw(st.booleans())
        one = on_a_device(data_size) if on_device else tensors(data_size)
        each = draw(st.lists(one, min_size=count, max_size=count))
        in_batch = stacked and not on_device and draw(st.booleans())
        drawn.append(TensorColumn(draw(integers), draw(integers), stacked, each, in_batch, on_device))
    return drawn


def each_request(strategy: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=count, max_size=count)


@st.composite
def batches(draw: st.DrawFn, data_size: int) -> BatchMessage:
    count = draw(st.integers(0, 5))
    rows = draw(st.just([]) | each_request(integers, count))
    some_details = draw(st.just([]) | each_request(metadata, count))
    is_traced = any(each.options.trace_context for each in some_details)
    return BatchMessage(count, rows, draw(columns(count, data_size)), some_details, is_traced, draw(st.booleans()))


@st.composite
def results(draw: st.DrawFn, data_size: int) -> ResultMessage:
    count = draw(st.integers(0, 5))
    some_failures = draw(st.lists(failures, max_size=4))
    some_columns = draw(columns(count, data_size))
    some_parameters = draw(st.dictionaries(integers, parameters, max_size=3))
    return ResultMessage(count, draw(integers), draw(integers), some_failures, some_columns, some_parameters)


@st.composite
def responses(draw: st.DrawFn, data_size: int) -> ResponsesMessage:
    drawn = []
    for _ in range(draw(st.integers(0, 4))):
        request = draw(integers)
        failure = draw(st.none() | st.builds(RequestFailure, st.just(request), integers, texts, texts))
        outputs = draw(st.lists(st.builds(ResponseOutput, integers, integers, tensors(data_size)), max_size=4))
        flags = draw(st.booleans()), draw(st.booleans())
        times = draw(integers), draw(integers)
        drawn.append(ResponseEntry(draw(integers), request, *flags, *times, failure, outputs, draw(parameters)))
    return ResponsesMessage(drawn)


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, int]:
    """A message, and the size of its data: the data itself is never read."""
    data_size = draw(st.sampled_from([0, 1, 100, 2**40, 2**62]))
    message = draw(st.one_of(batches(data_size), results(data_size), responses(data_size), registrations, admissions))
    return message, data_size if isinstance(message, BatchMessage | ResultMessage | ResponsesMessage) else 0
