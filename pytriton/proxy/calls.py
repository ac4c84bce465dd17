"""The layout of what workers ask of the server, and of what it replies. Twin of ``backend/calls.h``.

Bells and messages have the shape that ``protocol`` gives them; ``docs/wire.md`` tells the layout word by word.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from pytriton.exceptions import PyTritonInferenceError
from pytriton.model_config.datatypes import BYTES_CODE, DTYPE_BY_CODE
from pytriton.proxy.elements import bytes_array
from pytriton.proxy.message import (
    MessageReader,
    MessageWriter,
    ParameterValue,
    Tensor,
    bits_of,
    signed,
)
from pytriton.proxy.types import Array

_FINAL = 1
_RESPONSE = 2
_FAILED = 4
_FLAGS = 16  # first byte of the word that has these, behind the message's first two

_SHORT = 512  # bytes of a message that is worth being kept


class ServiceBell(enum.IntEnum):
    """What a bell on a service channel rings for.

    Its sequence is the number of what is asked, from 1, which the worker chooses; 0 where there is no reply.
    """

    OPEN = 1
    OPENED = 2
    CALL = 3
    CANCEL = 4
    LOG = 5
    MODEL = 6
    METRIC = 7
    REPLY = 8
    DONE = 9


class LogLevel(enum.IntEnum):
    """``TRITONSERVER_LogLevel``."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class ModelOrder(enum.IntEnum):
    """What is to be done with a model."""

    LOAD = 1
    UNLOAD = 2
    UNLOAD_WITH_DEPENDENTS = 3
    IS_READY = 4


class MetricKind(enum.IntEnum):
    """``TRITONSERVER_MetricKind``."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricOrder(enum.IntEnum):
    """What is to be done with a metric."""

    FAMILY = 1
    METRIC = 2
    INCREMENT = 3
    SET = 4
    OBSERVE = 5
    VALUE = 6
    DELETE = 7
    DELETE_FAMILY = 8


SEQUENCE_START = 1
"""A request's flag: it begins a sequence."""

SEQUENCE_END = 2
"""A request's flag: it ends a sequence."""

CURRENT_BATCH = 0
"""The batch of a worker that has one at a time."""

NO_BATCH = -1
"""A request that is made for no batch, or for one that is not known."""


class CallTensor(NamedTuple):
    """A tensor as it lies in memory.

    Attributes:
        datatype: A code of ``TRITONSERVER_DataType``.
        shape: The dimensions.
        data: The bytes, as an array of uint8; of a reply's it is a view of shared memory, which stays valid as long as
            it is held. BYTES are the lengths of all elements (uint32), then the elements back to back.
    """

    datatype: int
    shape: tuple[int, ...]
    data: Array

    def array(self) -> Array:
        """As an array that looks at the bytes; of objects for BYTES.

        Raises:
            PyTritonBadParameterError: It is BF16, and ml_dtypes is not installed.
        """
        if self.datatype != BYTES_CODE:
            return np.ndarray(self.shape, DTYPE_BY_CODE[self.datatype], cast("Any", self.data))
        return bytes_array(self.data, 0, self.shape)


@dataclass
class Call:
    """A request to a model of the server.

    Attributes:
        model: Its name.
        inputs: By name. Arrays of any dtype that Triton has, of bytes or of str, C-contiguous or not; or tensors with
            their datatype, for those that NumPy lacks.
        version: The model's version; -1 leaves it to Triton.
        outputs: Names of the outputs that are wanted; None is all.
        request_id: Given back in the reply.
        correlation_id: Of the sequence that it belongs to: a number, or text; 0 is none.
        flags: ``SEQUENCE_START`` and ``SEQUENCE_END``, added up.
        priority: 0 is the model's default, 1 the highest.
        timeout_us: The request's timeout in microseconds; 0 is none.
        parameters: What is sent besides tensors.
        batch: Sequence of the batch that it is made for; None leaves it to `Services`.
    """

    model: str
    inputs: Mapping[str, Array | CallTensor]
    version: int = -1
    outputs: Sequence[str] | None = None
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    batch: int | None = None


class CallInput(NamedTuple):
    """An input as it travels; BYTES as Triton has them, each element behind its length."""

    name: str
    datatype: int
    tensor: Tensor


@dataclass
class Reply:
    """A response to a call.

    Attributes:
        tensors: The outputs by name; none where there is an error.
        final: Whether it is the last one.
        model: Who answered.
        version: Its version.
        request_id: As it was in the call.
        parameters: What the model sent besides tensors.
        error: Why the request failed, or None.
    """

    tensors: dict[str, CallTensor] = field(default_factory=dict)
    final: bool = True
    model: str = ""
    version: int = -1
    request_id: str = ""
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: PyTritonInferenceError | None = None

    @property
    def outputs(self) -> dict[str, Array]:
        """The outputs by name, as arrays that look into shared memory (`CallTensor.array`)."""
        return {name: tensor.array() for name, tensor in self.tensors.items()}

    def check(self) -> Reply:
        """Itself.

        Raises:
            PyTritonInferenceError: It has an error.
        """
        if self.error is not None:
            raise self.error
        return self


class ReplyOutput(NamedTuple):
    """One output of a reply, in a block of its own: ``offset`` is that in the arena, -1 where there is no data."""

    name: str
    datatype: int
    offset: int
    size: int
    shape: tuple[int, ...]


@dataclass
class CallReplyMessage:
    """Backend to worker: a response, an error, the end, or several of these."""

    final: bool
    response: bool
    error: PyTritonInferenceError | None = None
    model: str = ""
    version: int = -1
    request_id: str = ""
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    outputs: list[ReplyOutput] = field(default_factory=list)


@dataclass
class ModelMessage:
    """Worker to backend: something to do with a model. Files are (path, offset in the data, size)."""

    order: ModelOrder
    model: str
    version: int = -1
    config: str = ""
    files: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass
class MetricMessage:
    """Worker to backend: something to do with a metric. ``number`` is that of the family or of the metric."""

    order: MetricOrder
    number: int = 0
    kind: MetricKind = MetricKind.COUNTER
    value: float = 0.0
    name: str = ""
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    buckets: Sequence[float] = ()


def write_call(call: Call, inputs: list[CallInput], batch: int) -> bytes:
    """Lays a call's head out, or finds it among those of late: a model mostly asks the same again and again."""
    if batch > 0 or call.request_id or call.correlation_id or call.parameters:
        return encode_call(call, inputs, batch).to_bytes()
    outputs = None if call.outputs is None else tuple(call.outputs)
    return _write_call(
        call.model, call.version, outputs, call.flags, call.priority, call.timeout_us, tuple(inputs), batch
    )


@functools.lru_cache(maxsize=64)
def _write_call(
    model: str,
    version: int,
    outputs: tuple[str, ...] | None,
    flags: int,
    priority: int,
    timeout_us: int,
    inputs: tuple[CallInput, ...],
    batch: int,
) -> bytes:
    call = Call(model, {}, version, outputs, flags=flags, priority=priority, timeout_us=timeout_us)
    return encode_call(call, list(inputs), batch).to_bytes()


def encode_call(call: Call, inputs: list[CallInput], batch: int) -> MessageWriter:
    """Lays a call's head out."""
    writer = MessageWriter()
    words = writer.words
    writer.text(call.model)
    words.append(call.version)
    writer.text(call.request_id)
    is_text = isinstance(call.correlation_id, str)
    words += (call.flags, call.priority, call.timeout_us, 0 if is_text else signed(cast("int", call.correlation_id)))
    writer.text(cast("str", call.correlation_id) if is_text else "")
    words += (batch, -1 if call.outputs is None else len(call.outputs))
    for name in call.outputs or ():
        writer.text(name)
    writer.parameters(call.parameters)
    words.append(len(inputs))
    for name, datatype, (offset, size, shape) in inputs:
        writer.text(name)
        words += (datatype, offset, size, len(shape))
        words += shape
    return writer


def decode_call(reader: MessageReader) -> tuple[Call, list[CallInput]]:
    """Reads a call's head."""
    model, version, request_id = reader.text(), reader.word(), reader.text()
    flags, priority, timeout_us, number = reader.take(4)
    correlation_id = reader.text() or _unsigned(number)
    batch, output_count = reader.word(), reader.word()
    outputs = None if output_count < 0 else [reader.text() for _ in range(output_count)]
    parameters = reader.parameters()
    inputs = [CallInput(reader.text(), reader.word(), reader.tensor()) for _ in range(reader.count())]
    call = Call(model, {}, version, outputs, request_id, correlation_id, flags, priority, timeout_us, parameters, batch)
    return call, inputs


def encode_reply(message: CallReplyMessage) -> MessageWriter:
    """Lays a reply's head out."""
    writer = MessageWriter()
    words = writer.words
    error = message.error
    words.append((_FINAL if message.final else 0) | (_RESPONSE if message.response else 0) | (_FAILED if error else 0))
    if error is not None:
        words.append(error.code)
        writer.text(error.message)
    if message.response:
        writer.text(message.model)
        words.append(message.version)
        writer.text(message.request_id)
        writer.parameters(message.parameters)
        words.append(len(message.outputs))
        for name, datatype, offset, size, shape in message.outputs:
            writer.text(name)
            words += (datatype, offset, size, len(shape))
            words += shape
    return writer


def read_reply(message: Array) -> CallReplyMessage:
    """Reads the head of a reply, or finds it among those of late. The result is not to be changed.

    Args:
        message: Its bytes.
    """
    if len(message) > _SHORT:
        return decode_reply(MessageReader(message, 0, len(message)))
    data = message.tobytes()
    if len(data) > _FLAGS and data[_FLAGS] & _FAILED:  # each has an exception of its own
        return decode_reply(MessageReader(data, 0, len(data)))
    return _read_reply(data)


@functools.lru_cache(maxsize=256)
def _read_reply(data: bytes) -> CallReplyMessage:
    return decode_reply(MessageReader(data, 0, len(data)))


def decode_reply(reader: MessageReader) -> CallReplyMessage:
    """Reads a reply's head."""
    flags = reader.word()
    final, response = bool(flags & _FINAL), bool(flags & _RESPONSE)
    error = None
    if flags & _FAILED:
        code = reader.word()
        error = PyTritonInferenceError(reader.text(), code)
    if not response:
        return CallReplyMessage(final, response, error)
    model, version, request_id, parameters = reader.text(), reader.word(), reader.text(), reader.parameters()
    outputs = [ReplyOutput(reader.text(), reader.word(), *reader.tensor()) for _ in range(reader.count())]
    return CallReplyMessage(final, response, error, model, version, request_id, parameters, outputs)


def encode_log(level: LogLevel, message: str, file: str, line: int) -> MessageWriter:
    """Lays a line for the server's log out."""
    writer = MessageWriter()
    writer.words += (level, line)
    writer.text(file)
    writer.text(message)
    return writer


def encode_model(message: ModelMessage) -> MessageWriter:
    """Lays out what is to be done with a model."""
    writer = MessageWriter()
    words = writer.words
    words.append(message.order)
    writer.text(message.model)
    words.append(message.version)
    writer.text(message.config)
    words.append(len(message.files))
    for path, offset, size in message.files:
        writer.text(path)
        words += (offset, size)
    return writer


def encode_metric(message: MetricMessage) -> MessageWriter:
    """Lays out what is to be done with a metric."""
    writer = MessageWriter()
    words = writer.words
    words += (message.order, message.number, message.kind, bits_of(message.value))
    writer.text(message.name)
    writer.text(message.description)
    words.append(len(message.labels))
    for key, value in message.labels.items():
        writer.text(key)
        writer.text(value)
    words.append(len(message.buckets))
    words += [bits_of(bucket) for bucket in message.buckets]
    return writer


def _unsigned(word: int) -> int:
    return word & ((1 << 64) - 1)
