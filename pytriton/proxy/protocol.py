"""The layout of what the proxy backend and its workers tell each other. Twin of ``backend/protocol.h``.

Bells (32 bytes on a socket) say where in shared memory a message lies. A message is a run of little-endian 64-bit
words, then a heap of strings, then tensor data; all its offsets are relative to its own parts, so it can lie anywhere.
``docs/wire.md`` tells the layout word by word.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

PROTOCOL_VERSION = 3
"""Raised whenever the layout changes; a different version on the other side is refused."""

ALIGNMENT = 64
"""Tensor data starts at multiples of this, so that any vector instruction may read it."""

LENGTH_SIZE = 4
"""Bytes that hold the length of one BYTES element."""

_HAS_ROWS = 1
_HAS_DETAILS = 2
_FINAL = 1
_RESPONSE = 2
_FAILED = 4
_HAS_PARAMETERS = 8
_MASK = (1 << 64) - 1
_TEXT = struct.Struct("<2q")
_DOUBLE = struct.Struct("<d")
_INTEGER = struct.Struct("<q")


class ProtocolError(Exception):
    """A message that does not hold what it says."""


class BellKind(enum.IntEnum):
    """What a bell rings for."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    RESULT = 4
    ANSWERS = 5
    RETURNED = 6


class Bell(NamedTuple):
    """What travels on the socket: ``offset`` and ``size`` tell where a message lies in the sender's arena."""

    kind: int
    sequence: int
    offset: int
    size: int


BELL = struct.Struct("<4q")


class Tensor(NamedTuple):
    """Where one tensor lies, relative to its message's data; an absent tensor has the offset -1.

    Elements of BYTES lie as their lengths (uint32 each), then their bytes back to back.
    """

    offset: int
    size: int
    shape: tuple[int, ...]


ABSENT = Tensor(-1, 0, ())


class Column(NamedTuple):
    """One input or output over all requests of a batch.

    ``position`` is that of the input or output in the model's configuration.

    It is a single tensor when it is stacked (the requests' tensors lie back to back along the first dimension), else
    one tensor per request.
    """

    position: int
    datatype: int
    stacked: bool
    tensors: list[Tensor]


class ParameterType(enum.IntEnum):
    """Triton's types of request parameters."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 4


ParameterValue = Union[str, int, bool, float]


class Envelope(NamedTuple):
    """What a request says of how it is to be treated; most say nothing.

    Attributes:
        correlation_id: Of the sequence that it belongs to: a number, or text; 0 is none.
        flags: ``TRITONSERVER_RequestFlag``, added up: 1 starts a sequence, 2 ends it.
        priority: 0 is the model's default, 1 the highest.
        timeout_us: Its timeout in microseconds; 0 is none.
        trace: The number of its trace; 0 where it is not traced.
    """

    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    trace: int = 0


EMPTY_ENVELOPE = Envelope()


@dataclass
class Details:
    """What a request brings besides its tensors. ``outputs`` is None when all outputs are requested."""

    id: str = ""
    outputs: list[int] | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    envelope: Envelope = EMPTY_ENVELOPE


@dataclass
class BatchMessage:
    """Backend to worker: requests to infer.

    The data starts with a byte for each request, which the backend sets to 1 when the request is cancelled.

    ``rows`` holds the first dimension of each request, and nothing where the model does not batch; ``details`` holds
    nothing where no request has any.
    """

    request_count: int
    rows: list[int]
    columns: list[Column]
    details: list[Details]


RESCHEDULE = -1
"""In place of a failure's code: the request has not failed, but goes back to the server, which sends it again."""


class Failure(NamedTuple):
    """A request that failed, or with ``request`` -1 the whole batch. ``code`` may be ``RESCHEDULE``."""

    request: int
    code: int
    message: str
    detail: str


@dataclass
class ResultMessage:
    """Worker to backend: what came of a batch, from a worker that takes one at a time.

    Times are CLOCK_MONOTONIC in nanoseconds. ``parameters`` holds those of responses that have any, by request.
    """

    request_count: int
    compute_start_ns: int
    compute_end_ns: int
    failures: list[Failure]
    columns: list[Column]
    parameters: dict[int, dict[str, ParameterValue]] = field(default_factory=dict)


class AnswerOutput(NamedTuple):
    """One output of an answer. ``position`` is that of the output in the model's configuration."""

    position: int
    datatype: int
    tensor: Tensor


class Answer(NamedTuple):
    """What there is to say of one request of a batch.

    A response, that the request has failed, that it has ended (no more answers follow), or several of these.
    ``sequence`` is that of the batch; ``request`` of the failure is not used. Times are as in ResultMessage.
    """

    sequence: int
    request: int
    final: bool
    response: bool
    compute_start_ns: int
    compute_end_ns: int
    failure: Failure | None
    outputs: list[AnswerOutput]
    parameters: dict[str, ParameterValue] = {}  # noqa: RUF012  (a tuple's default, which nobody changes)


@dataclass
class AnswersMessage:
    """Worker to backend: what there is to say of requests of any batches, from a worker that takes many at a time."""

    answers: list[Answer]


@dataclass
class RegistrationMessage:
    """Backend to registry: a model instance looks for its worker. ``config`` is the model's configuration as JSON."""

    binding: str
    model: str
    version: int
    instance: str
    config: str


@dataclass
class AdmissionMessage:
    """Registry to backend: where the worker is, and the names that positions stand for.

    ``in_flight`` is how many batches the worker takes at a time; 0 is one, which it answers with a result. With
    ``in_turn`` it is handed a batch only when its inference callable has returned from the one before, though that may
    be answered later.
    """

    socket: str
    ticket: int
    batching: bool
    decoupled: bool
    in_flight: int
    inputs: list[str]
    outputs: list[str]
    in_turn: bool = False


def aligned(size: int) -> int:
    """The next multiple of ``ALIGNMENT``."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


class MessageWriter:
    """Puts words and strings together. The first two words say where the heap and the data start."""

    __slots__ = ("_heap", "words")

    def __init__(self) -> None:
        self.words: list[int] = [0, 0]
        self._heap = bytearray()

    def text(self, text: str) -> None:
        """Adds a string."""
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # half a character, as in an exception's text: not worth a batch
            data = text.encode("utf-8", "backslashreplace")
        self.words += (len(self._heap), len(data))
        self._heap += data

    def columns(self, columns: list[Column]) -> None:
        """Adds the inputs or outputs of a batch."""
        words = self.words
        words.append(len(columns))
        for position, datatype, stacked, tensors in columns:
            words += (position, datatype, 1 if stacked else 0)
            for offset, size, shape in tensors:
                words += (offset, size, len(shape))
                words += shape

    def parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """Adds parameters."""
        words = self.words
        words.append(len(parameters))
        for key, value in parameters.items():
            self.text(key)
            if isinstance(value, bool):
                words += (ParameterType.BOOL, int(value))
            elif isinstance(value, int):
                words += (ParameterType.INT, value)
            elif isinstance(value, float):
                words += (ParameterType.DOUBLE, _INTEGER.unpack(_DOUBLE.pack(value))[0])
            else:
                words.append(ParameterType.STRING)
                self.text(value)

    def head_size(self) -> int:
        """Bytes before the data; the data is meant to start right there."""
        return aligned(len(self.words) * 8 + len(self._heap))

    def write_to(self, buffer: Any, offset: int) -> None:
        """Writes words and heap into a writable buffer."""
        words = self.words
        count = len(words)
        words[0] = count * 8
        words[1] = self.head_size()
        struct.pack_into(f"<{count}q", buffer, offset, *words)
        if self._heap:
            start = offset + count * 8
            buffer[start : start + len(self._heap)] = self._heap

    def to_bytes(self) -> bytes:
        """The message on its own, without data."""
        buffer = bytearray(self.head_size())
        self.write_to(buffer, 0)
        return bytes(buffer)


class MessageReader:
    """Takes a message apart that lies in ``buffer`` at ``offset``.

    Its methods, and the functions that decode with it, raise ProtocolError where the message does not hold what it
    says: the other side may be anything.
    """

    __slots__ = ("_buffer", "_heap_size", "_heap_start", "_position", "_words", "data_offset")

    def __init__(self, buffer: Any, offset: int, size: int) -> None:
        if size < _TEXT.size:
            raise ProtocolError("a message is too short to have a head")
        heap_offset, self.data_offset = _TEXT.unpack_from(buffer, offset)
        if not _TEXT.size <= heap_offset <= self.data_offset <= size:
            raise ProtocolError("a message says that its parts lie outside of it")
        self._buffer = buffer
        self._heap_start = offset + heap_offset
        self._heap_size = self.data_offset - heap_offset
        self._words: tuple[int, ...] = struct.unpack_from(f"<{heap_offset // 8}q", buffer, offset)
        self._position = 2

    def word(self) -> int:
        """The next word."""
        position = self._position
        self._position = position + 1
        try:
            return self._words[position]
        except IndexError:
            raise ProtocolError("a message ends too early") from None

    def count(self) -> int:
        """The next word, which counts something."""
        count = self.word()
        if count < 0:
            raise ProtocolError("a message counts less than nothing")
        return count

    def take(self, count: int) -> tuple[int, ...]:
        """The next words."""
        position = self._position
        self._position = end = position + count
        if not position <= end <= len(self._words):
            raise ProtocolError("a message ends too early")
        return self._words[position:end]

    def tensor(self) -> Tensor:
        """The next tensor."""
        offset, size, rank = self.take(3)
        if rank < 0:
            raise ProtocolError("a tensor has less than no dimensions")
        return Tensor(offset, size, self.take(rank))

    def text(self) -> str:
        """The next string."""
        offset, size = self.take(2)
        if offset < 0 or size < 0 or offset + size > self._heap_size:
            raise ProtocolError("a text lies outside of its message")
        start = self._heap_start + offset
        return bytes(self._buffer[start : start + size]).decode("utf-8", "surrogateescape")

    def parameters(self) -> dict[str, ParameterValue]:
        """The next parameters."""
        parameters: dict[str, ParameterValue] = {}
        for _ in range(self.count()):
            key = self.text()
            kind = self.word()
            if kind == ParameterType.STRING:
                parameters[key] = self.text()
            elif kind == ParameterType.BOOL:
                parameters[key] = self.word() != 0
            elif kind == ParameterType.DOUBLE:
                parameters[key] = _DOUBLE.unpack(_INTEGER.pack(self.word()))[0]
            else:
                parameters[key] = self.word()
        return parameters

    def columns(self, request_count: int) -> list[Column]:
        """The inputs or outputs of a batch of ``request_count`` requests."""
        words = self._words
        count = self.count()
        position = self._position
        columns = []
        try:
            for _ in range(count):
                number, datatype, stacked = words[position : position + 3]
                position += 3
                tensors = []
                for _ in range(1 if stacked else request_count):
                    offset, size, rank = words[position : position + 3]
                    position += 3
                    if rank < 0:
                        raise ProtocolError("a tensor has less than no dimensions")
                    tensors.append(Tensor(offset, size, words[position : position + rank]))
                    position += rank
                columns.append(Column(number, datatype, stacked != 0, tensors))
        except ValueError:  # fewer words than there are to unpack
            raise ProtocolError("a message ends too early") from None
        self._position = position
        self.take(0)  # the last shape may have been cut short
        return columns


def encode_batch(message: BatchMessage) -> MessageWriter:
    """Lays a batch's head out."""
    writer = MessageWriter()
    words = writer.words
    words += (message.request_count, (_HAS_ROWS if message.rows else 0) | (_HAS_DETAILS if message.details else 0))
    words += message.rows
    writer.columns(message.columns)
    for details in message.details:
        writer.text(details.id)
        words.append(-1 if details.outputs is None else len(details.outputs))
        words += details.outputs or ()
        writer.parameters(details.parameters)
        _write_envelope(writer, details.envelope)
    return writer


def _write_envelope(writer: MessageWriter, envelope: Envelope) -> None:
    if envelope == EMPTY_ENVELOPE:
        writer.words.append(0)
        return
    correlation_id, *numbers = envelope
    writer.words.append(1)
    writer.words.append(_signed(0 if isinstance(correlation_id, str) else correlation_id))
    writer.text(correlation_id if isinstance(correlation_id, str) else "")
    writer.words += map(_signed, numbers)


def _signed(number: int) -> int:
    """A number below 2**64, as a word holds it."""
    return (number & _MASK) - ((number & (1 << 63)) << 1)


def decode_batch(reader: MessageReader) -> BatchMessage:
    """Reads a batch's head."""
    request_count, flags = reader.count(), reader.word()
    rows = list(reader.take(request_count)) if flags & _HAS_ROWS else []
    columns = reader.columns(request_count)
    details = [_read_details(reader) for _ in range(request_count)] if flags & _HAS_DETAILS else []
    return BatchMessage(request_count, rows, columns, details)


def _read_details(reader: MessageReader) -> Details:
    request_id = reader.text()
    output_count = reader.word()
    outputs = None if output_count < 0 else list(reader.take(output_count))
    return Details(request_id, outputs, reader.parameters(), _read_envelope(reader))


def _read_envelope(reader: MessageReader) -> Envelope:
    if not reader.word():
        return EMPTY_ENVELOPE
    number, text = reader.word() & _MASK, reader.text()
    return Envelope(text or number, *(word & _MASK for word in reader.take(4)))


def encode_result(message: ResultMessage) -> MessageWriter:
    """Lays a result's head out."""
    writer = MessageWriter()
    words = writer.words
    words += (message.request_count, message.compute_start_ns, message.compute_end_ns, len(message.failures))
    for request, code, text, detail in message.failures:
        words += (request, code)
        writer.text(text)
        writer.text(detail)
    words.append(len(message.parameters))
    for request, parameters in message.parameters.items():
        words.append(request)
        writer.parameters(parameters)
    writer.columns(message.columns)
    return writer


def decode_result(reader: MessageReader) -> ResultMessage:
    """Reads a result's head."""
    request_count, start, end = reader.count(), reader.word(), reader.word()
    failures = [Failure(reader.word(), reader.word(), reader.text(), reader.text()) for _ in range(reader.count())]
    parameters = {reader.word(): reader.parameters() for _ in range(reader.count())}
    return ResultMessage(request_count, start, end, failures, reader.columns(request_count), parameters)


def encode_answers(message: AnswersMessage) -> MessageWriter:
    """Lays the head of answers out."""
    writer = MessageWriter()
    words = writer.words
    words.append(len(message.answers))
    for sequence, request, final, response, start, end, failure, outputs, parameters in message.answers:
        flags = (_FINAL if final else 0) | (_RESPONSE if response else 0) | (_FAILED if failure else 0)
        flags |= _HAS_PARAMETERS if parameters else 0
        words += (sequence, request, flags, start, end)
        if failure:
            words.append(failure.code)
            writer.text(failure.message)
            writer.text(failure.detail)
        if parameters:
            writer.parameters(parameters)
        words.append(len(outputs))
        for position, datatype, (offset, size, shape) in outputs:
            words += (position, datatype, offset, size, len(shape))
            words += shape
    return writer


def decode_answers(reader: MessageReader) -> AnswersMessage:
    """Reads the head of answers."""
    answers = []
    for _ in range(reader.count()):
        sequence, request, flags, start, end = reader.take(5)
        failure = Failure(request, reader.word(), reader.text(), reader.text()) if flags & _FAILED else None
        parameters = reader.parameters() if flags & _HAS_PARAMETERS else {}
        outputs = [AnswerOutput(reader.word(), reader.word(), reader.tensor()) for _ in range(reader.count())]
        final, response = bool(flags & _FINAL), bool(flags & _RESPONSE)
        answers.append(Answer(sequence, request, final, response, start, end, failure, outputs, parameters))
    return AnswersMessage(answers)


def encode_registration(message: RegistrationMessage) -> bytes:
    """A registration as it travels over ZeroMQ."""
    writer = MessageWriter()
    writer.text(message.binding)
    writer.text(message.model)
    writer.words.append(message.version)
    writer.text(message.instance)
    writer.text(message.config)
    return writer.to_bytes()


def decode_registration(data: bytes) -> RegistrationMessage:
    """Reads a registration."""
    reader = MessageReader(data, 0, len(data))
    return RegistrationMessage(reader.text(), reader.text(), reader.word(), reader.text(), reader.text())


def encode_admission(message: AdmissionMessage) -> bytes:
    """An admission as it travels over ZeroMQ."""
    writer = MessageWriter()
    writer.text(message.socket)
    writer.words += (message.ticket, int(message.batching), int(message.decoupled), message.in_flight)
    for names in (message.inputs, message.outputs):
        writer.words.append(len(names))
        for name in names:
            writer.text(name)
    writer.words.append(int(message.in_turn))
    return writer.to_bytes()


def decode_admission(data: bytes) -> AdmissionMessage:
    """Reads an admission."""
    reader = MessageReader(data, 0, len(data))
    socket, ticket = reader.text(), reader.word()
    batching, decoupled, in_flight = reader.word() != 0, reader.word() != 0, reader.word()
    inputs = [reader.text() for _ in range(reader.count())]
    outputs = [reader.text() for _ in range(reader.count())]
    in_turn = reader.word() != 0
    return AdmissionMessage(socket, ticket, batching, decoupled, in_flight, inputs, outputs, in_turn)
