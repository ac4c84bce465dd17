"""Messages of a service channel: requests of a worker to the server, and the replies.

Counterpart of ``backend/wire/service.h``. ``docs/wire.md`` describes the layout word by word.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytriton.exceptions import PyTritonInferenceError
from pytriton.proxy.wire.encoding import (
    FAILED,
    FINAL,
    RESPONSE,
    MessageReader,
    MessageWriter,
    ParameterValue,
    ProtocolError,
    TensorLocation,
    bits_of,
)

_FLAGS = 16  # offset of a reply's flags: the word after the message's first two
_SHORT = 512  # bytes of the largest message that is cached
# A reply with one output and no parameters: flags, offset and size of the request's id; then the words that most
# replies of a model have in common; then offset, size and rank of the output, and its shape.
_ONE_OUTPUT = struct.Struct("<16xq24x2q40x3q")
_SAME = 104  # bytes before that offset
_COUNTS = slice(64, 80)  # of parameters and outputs
_ONE = struct.pack("<2q", 0, 1)
_MAX_RANK = 8
_SHAPES = [struct.Struct(f"<{rank}q") for rank in range(_MAX_RANK + 1)]


class ServiceNotification(enum.IntEnum):
    """The kind of a notification on a service channel.

    Its sequence is the number of the call, from 1, which the worker chooses; 0 if there is no reply.
    """

    OPEN = 1
    OPENED = 2
    INFER = 3
    CANCEL = 4
    LOG = 5
    MODEL = 6
    METRIC = 7
    REPLY = 8
    DONE = 9
    ACTIVITY = 10


class TraceActivity(enum.IntEnum):
    """The values of ``TRITONSERVER_InferenceTraceActivity`` in use, and ``RELEASED`` if no more follow."""

    RELEASED = -1
    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_END = 5
    REQUEST_END = 6


class LogLevel(enum.IntEnum):
    """``TRITONSERVER_LogLevel``."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class ModelOperation(enum.IntEnum):
    """An operation on a model."""

    LOAD = 1
    UNLOAD = 2
    UNLOAD_WITH_DEPENDENTS = 3
    IS_READY = 4


class MetricKind(enum.IntEnum):
    """``TRITONSERVER_MetricKind``."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricOperation(enum.IntEnum):
    """An operation on a metric."""

    FAMILY = 1
    METRIC = 2
    INCREMENT = 3
    SET = 4
    OBSERVE = 5
    VALUE = 6
    DELETE = 7
    DELETE_FAMILY = 8
    UPDATE = 9


SEQUENCE_START = 1
"""Request flag: starts a sequence."""


SEQUENCE_END = 2
"""Request flag: ends a sequence."""


CURRENT_BATCH = 0
"""The batch of a worker in sequential mode."""


NO_BATCH = -1
"""The request belongs to no batch, or to an unknown one."""


ON_DEVICE = 256
"""Added to the datatype of a tensor in the memory of a GPU, which is replaced by a `DeviceLocation`."""


class InferenceCallInput(NamedTuple):
    """An input of a call. BYTES are in Triton's layout: each element after its length."""

    name: str
    datatype: int
    tensor: TensorLocation


class InferenceReplyOutput(NamedTuple):
    """One output of a reply, in its own block: ``offset`` is relative to the arena, -1 if there is no data."""

    name: str
    datatype: int
    offset: int
    size: int
    shape: tuple[int, ...]


@dataclass
class InferenceReplyMessage:
    """Backend to worker: a response, an error, the end of the replies, or several of these."""

    final: bool
    response: bool
    error: PyTritonInferenceError | None = None
    model: str = ""
    version: int = -1
    request_id: str = ""
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    outputs: list[InferenceReplyOutput] = field(default_factory=list)


@dataclass
class ModelMessage:
    """Worker to backend: an operation on a model. Files are (path, offset in the data, size)."""

    command: ModelOperation
    model: str
    version: int = -1
    config: str = ""
    files: list[tuple[str, int, int]] = field(default_factory=list)


class MetricUpdate(NamedTuple):
    """A change of a metric: INCREMENT, SET or OBSERVE, the latter ``times`` times."""

    number: int
    operation: MetricOperation
    value: float
    times: int = 1


@dataclass
class MetricMessage:
    """Worker to backend: an operation on a metric. ``number`` identifies the family or the metric.

    UPDATE applies many changes at once, ``updates``.
    """

    command: MetricOperation
    number: int = 0
    kind: MetricKind = MetricKind.COUNTER
    value: float = 0.0
    name: str = ""
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    buckets: Sequence[float] = ()
    updates: Sequence[MetricUpdate] = ()


def read_reply(data: bytes) -> InferenceReplyMessage:
    """Decodes a reply's header. Cached: the result must not be changed.

    Args:
        data: The bytes of the message.
    """
    if len(data) > _SHORT or (len(data) > _FLAGS and data[_FLAGS] & FAILED):  # each error needs an exception object
        return decode_reply(MessageReader(data, 0, len(data)))
    if len(data) < _ONE_OUTPUT.size or data[_COUNTS] != _ONE:
        return _decode_cached(data)
    # The replies of a model mostly differ only in the request's id, and in the location and shape of their single
    # output.
    flags, id_start, id_size, offset, size, rank = _ONE_OUTPUT.unpack_from(data)
    heap = _ONE_OUTPUT.size + 8 * rank
    id_start += heap
    id_end = id_start + id_size
    if (
        not 0 <= rank <= _MAX_RANK
        or not flags & RESPONSE
        or int.from_bytes(data[:8], "little") != heap
        or not heap <= id_start <= id_end <= len(data)
    ):
        return _decode_cached(data)
    head = _head_of(data[:_SAME], b"".join([data[heap:id_start], bytes(id_size), data[id_end:]]), rank)
    if head is None:
        return _decode_cached(data)
    name, datatype, model, version = head
    try:
        shape = _SHAPES[rank].unpack_from(data, _ONE_OUTPUT.size)
    except struct.error:
        raise ProtocolError("a message ends too early") from None
    request_id = data[id_start:id_end].decode("utf-8", "surrogateescape")
    output = InferenceReplyOutput(name, datatype, offset, size, shape)
    return InferenceReplyMessage(bool(flags & FINAL), True, None, model, version, request_id, {}, [output])


@functools.lru_cache(maxsize=256)
def _head_of(words: bytes, heap: bytes, rank: int) -> tuple[str, int, str, int] | None:
    """Returns the part of a header that stays the same: output, datatype, model, version.

    None if a string overlaps the request's id, which the server never writes.
    """
    *_, model, model_size, _, request, request_size, _, _, name, name_size, _ = struct.unpack(f"<{_SAME // 8}q", words)
    if any(
        at < request + request_size and request < at + size for at, size in ((model, model_size), (name, name_size))
    ):
        return None
    reader = MessageReader(b"".join([words, bytes(8 * (rank + 3)), heap]), 0, _SAME + 8 * (rank + 3) + len(heap))
    message = decode_reply(reader)
    [output] = message.outputs
    return output.name, output.datatype, message.model, message.version


@functools.lru_cache(maxsize=256)
def _decode_cached(data: bytes) -> InferenceReplyMessage:
    return decode_reply(MessageReader(data, 0, len(data)))


def decode_reply(reader: MessageReader) -> InferenceReplyMessage:
    """Decodes a reply's header."""
    flags = reader.word()
    final, response = bool(flags & FINAL), bool(flags & RESPONSE)
    error = None
    if flags & FAILED:
        code = reader.word()
        error = PyTritonInferenceError(reader.text(), code)
    if not response:
        return InferenceReplyMessage(final, response, error)
    model, version, request_id, parameters = reader.text(), reader.word(), reader.text(), reader.parameters()
    outputs = [InferenceReplyOutput(reader.text(), reader.word(), *reader.tensor()) for _ in range(reader.count())]
    return InferenceReplyMessage(final, response, error, model, version, request_id, parameters, outputs)


def encode_log(level: LogLevel, message: str, file: str, line: int) -> MessageWriter:
    """Encodes a line for the server's log."""
    writer = MessageWriter()
    writer.words += (level, line)
    writer.text(file)
    writer.text(message)
    return writer


def encode_model(message: ModelMessage) -> MessageWriter:
    """Encodes an operation on a model."""
    writer = MessageWriter()
    words = writer.words
    words.append(message.command)
    writer.text(message.model)
    words.append(message.version)
    writer.text(message.config)
    words.append(len(message.files))
    for path, offset, size in message.files:
        writer.text(path)
        words += (offset, size)
    return writer


def encode_metric(message: MetricMessage) -> MessageWriter:
    """Encodes an operation on a metric."""
    writer = MessageWriter()
    words = writer.words
    words += (message.command, message.number, message.kind, bits_of(message.value))
    writer.text(message.name)
    writer.text(message.description)
    words.append(len(message.labels))
    for key, value in message.labels.items():
        writer.text(key)
        writer.text(value)
    words.append(len(message.buckets))
    words += [bits_of(bucket) for bucket in message.buckets]
    words.append(len(message.updates))
    for update in message.updates:
        words += (update.number, update.operation, bits_of(update.value), update.times)
    return writer
