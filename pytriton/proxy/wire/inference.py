"""Messages that carry batches to a worker, and results back. Counterpart of ``backend/wire/inference.h``."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytriton.proxy.wire.encoding import (
    FAILED,
    FINAL,
    RESPONSE,
    MessageReader,
    MessageWriter,
    ParameterValue,
    ProtocolError,
    TensorColumn,
    TensorLocation,
)

HAS_ROWS = 1
"""Flag of a batch: the numbers of rows of its requests follow."""

IS_TRACED = 2
"""Flag of a batch: a request has a trace context."""

WANTS_GPU = 4
"""Flag of a batch: a request prefers an output in the memory of a GPU."""

HAS_PARAMETERS = 8
"""Flag of a response entry: its parameters follow."""

_MASK = (1 << 64) - 1

TIMES_AT = 24
"""The offset of the times in a result."""
write_times = struct.Struct("<2q").pack_into
"""Writes the times into a buffer, at an offset."""
_PARTS = struct.Struct("<2q")  # the offsets of a message's heap and data
_PARTS_OF_BATCH = struct.Struct("<3q")
_TENSORS_AT = _PARTS_OF_BATCH.size
_SHORT = 1024  # bytes of the largest header that is cached


class RequestOptions(NamedTuple):
    """Options that specify how to handle a request; most requests set none.

    Attributes:
        correlation_id: The sequence that the request belongs to, a number or a string; 0 for none.
        flags: The sum of ``TRITONSERVER_RequestFlag`` values: 1 starts a sequence, 2 ends it.
        priority: 1 is the highest; 0 is the model's default.
        timeout_us: The timeout in microseconds; 0 for none.
        trace: The number of the trace; 0 if the request is not traced.
        trace_context: The OpenTelemetry context of the trace, as JSON; empty if there is none.
    """

    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    trace: int = 0
    trace_context: str = ""


DEFAULT_OPTIONS = RequestOptions()


@dataclass
class RequestMetadata:
    """The metadata of a request, besides its tensors. ``outputs`` is None if all outputs are requested."""

    id: str = ""
    outputs: list[int] | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    options: RequestOptions = DEFAULT_OPTIONS


@dataclass
class BatchMessage:
    """Backend to worker: a batch of requests.

    The data starts with a cancel flag for each request: a byte that the backend sets to 1 when the request is
    cancelled.

    ``rows`` is the first dimension of each request, and empty if the model does not batch; ``metadata`` is empty if no
    request has any. ``is_traced``: a request has a trace context. ``wants_gpu``: one prefers an output in the memory of
    a GPU.
    """

    request_count: int
    rows: list[int]
    columns: list[TensorColumn]
    metadata: list[RequestMetadata]
    is_traced: bool = False
    wants_gpu: bool = False

    @functools.cached_property
    def is_stacked(self) -> bool:
        """Whether every input is stacked."""
        return all(column.stacked for column in self.columns)


RESCHEDULE = -1
"""Replaces an error code: the request has not failed, but is returned to the server, which schedules it again."""


class RequestFailure(NamedTuple):
    """The failure of a request, or of the whole batch if ``request`` is -1.

    ``code`` may be ``RESCHEDULE``; ``error`` is the name of the exception's class, empty if there was none.
    """

    request: int
    code: int
    message: str
    detail: str
    error: str = ""


@dataclass
class ResultMessage:
    """Worker to backend: the result of a whole batch.

    Times are CLOCK_MONOTONIC in nanoseconds. ``parameters`` holds the parameters of responses that have any, by
    request.
    """

    request_count: int
    compute_start_ns: int
    compute_end_ns: int
    failures: list[RequestFailure]
    columns: Sequence[TensorColumn]
    parameters: dict[int, dict[str, ParameterValue]] = field(default_factory=dict)


class ResponseOutput(NamedTuple):
    """One output of a response. ``position`` is its position in the model's configuration."""

    position: int
    datatype: int
    tensor: TensorLocation


class ResponseEntry(NamedTuple):
    """An entry for one request of a batch: a response, a failure, its end (``final``), or several of these.

    ``sequence`` is the number of the batch; the ``request`` of the failure is not used. Times are as in ResultMessage.
    """

    sequence: int
    request: int
    final: bool
    response: bool
    compute_start_ns: int
    compute_end_ns: int
    failure: RequestFailure | None
    outputs: list[ResponseOutput]
    parameters: dict[str, ParameterValue] = {}  # noqa: RUF012  (a tuple's default, which is never changed)


@dataclass
class ResponsesMessage:
    """Worker to backend: responses to requests of any batches, in concurrent mode."""

    responses: list[ResponseEntry]


def decode_tensors(reader: MessageReader) -> BatchMessage:
    """Decodes a batch's header without the metadata, starting after the position of the metadata."""
    request_count, flags = reader.count(), reader.word()
    rows = list(reader.take(request_count)) if flags & HAS_ROWS else []
    columns = reader.columns(request_count)
    return BatchMessage(request_count, rows, columns, [], bool(flags & IS_TRACED), bool(flags & WANTS_GPU))


def read_batch(message: Any) -> tuple[BatchMessage, int, int]:
    """Decodes a batch's header without the metadata. Cached, since most batches differ only in their metadata.

    Args:
        message: A buffer that starts with the message.

    Returns:
        The header without metadata, which must not be changed; the offset of the data; and the position of the metadata
        for `read_metadata`, 0 if there is none.
    """
    size = len(message)
    if size < _TENSORS_AT:
        raise ProtocolError("a batch is too short to have a head")
    heap_offset, data_offset, metadata_start = _PARTS_OF_BATCH.unpack_from(message)
    end = 8 * metadata_start or heap_offset
    if not _TENSORS_AT <= end <= heap_offset <= data_offset <= size:
        raise ProtocolError("the parts of a batch lie outside it")
    words: bytes = struct.unpack_from(f"{end - _TENSORS_AT}s", message, _TENSORS_AT)[0]
    read = _read_again if end <= _SHORT else _read_tensors
    return read(words), data_offset, metadata_start


def read_metadata(message: Any, request_count: int, start: int) -> list[RequestMetadata]:
    """Decodes the metadata of a batch's requests, at the position that `read_batch` returned."""
    reader = MessageReader(message, 0, len(message))
    reader.take(start - reader.position)
    return [decode_metadata(reader) for _ in range(request_count)]


def _read_tensors(words: bytes) -> BatchMessage:
    size = _PARTS.size + len(words)
    return decode_tensors(MessageReader(_PARTS.pack(size, size) + words, 0, size))  # a message of these words only


_read_again = functools.lru_cache(maxsize=256)(_read_tensors)


def decode_metadata(reader: MessageReader) -> RequestMetadata:
    """Decodes the metadata of one request."""
    request_id = reader.text()
    output_count = reader.word()
    outputs = None if output_count < 0 else list(reader.take(output_count))
    return RequestMetadata(request_id, outputs, reader.parameters(), _decode_options(reader))


def _decode_options(reader: MessageReader) -> RequestOptions:
    if not reader.word():
        return DEFAULT_OPTIONS
    number, text = reader.word() & _MASK, reader.text()
    flags, priority, timeout_us, trace = (word & _MASK for word in reader.take(4))
    return RequestOptions(text or number, flags, priority, timeout_us, trace, reader.text())


def encode_result(message: ResultMessage) -> MessageWriter:
    """Encodes a result's header."""
    writer = MessageWriter()
    words = writer.words
    words += (message.request_count, message.compute_start_ns, message.compute_end_ns, len(message.failures))
    for request, code, text, detail, error in message.failures:
        words += (request, code)
        writer.text(text)
        writer.text(detail)
        writer.text(error)
    words.append(len(message.parameters))
    for request, parameters in message.parameters.items():
        words.append(request)
        writer.parameters(parameters)
    writer.columns(message.columns)
    return writer


@functools.lru_cache(maxsize=256)
def encode_outputs(request_count: int, columns: tuple[TensorColumn, ...]) -> bytes:
    """Encodes a result that only has outputs, without the times. Cached: most results differ only in the times."""
    return encode_result(ResultMessage(request_count, 0, 0, [], columns)).to_bytes()


def encode_responses(message: ResponsesMessage) -> MessageWriter:
    """Encodes the header of responses."""
    writer = MessageWriter()
    words = writer.words
    words.append(len(message.responses))
    for sequence, request, final, response, start, end, failure, outputs, parameters in message.responses:
        flags = (FINAL if final else 0) | (RESPONSE if response else 0) | (FAILED if failure else 0)
        flags |= HAS_PARAMETERS if parameters else 0
        words += (sequence, request, flags, start, end)
        if failure:
            words.append(failure.code)
            writer.text(failure.message)
            writer.text(failure.detail)
            writer.text(failure.error)
        if parameters:
            writer.parameters(parameters)
        words.append(len(outputs))
        for position, datatype, (offset, size, shape) in outputs:
            words += (position, datatype, offset, size, len(shape))
            words += shape
    return writer
