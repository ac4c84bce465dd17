"""The encoding of messages: their parts, a writer and a reader. Counterpart of ``backend/wire/encoding.h``.

A message is a run of little-endian 64-bit words, then a heap of strings, then tensor data. All offsets are relative to
the message's own parts, so it can lie anywhere. ``docs/wire.md`` describes the layout word by word.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

ALIGNMENT = 64
"""Tensor data starts at multiples of this, so that any vector instruction may read it."""

LENGTH_SIZE = 4
"""Bytes that hold the length of one BYTES element."""

FINAL = 1
"""Flag of a response: it is the last one of its request."""

RESPONSE = 2
"""Flag of a response: it has a header and outputs."""

FAILED = 4
"""Flag of a response: it has an error."""

# Place of a stacked column that lies in the batch, or on a GPU, instead of in this message.
_IN_BATCH = 2
_ON_DEVICE = 3

_TEXT = struct.Struct("<2q")
_DOUBLE = struct.Struct("<d")
_INTEGER = struct.Struct("<q")
_DEVICE_LOCATION = struct.Struct("<64s16sq")
DEVICE_LOCATION_SIZE = _DEVICE_LOCATION.size
"""Bytes of a `DeviceLocation`."""


class ProtocolError(Exception):
    """A malformed message."""


class TensorLocation(NamedTuple):
    """The location of a tensor, relative to its message's data; an absent tensor has the offset -1.

    BYTES tensors hold the lengths of all elements (uint32 each), then their bytes back to back.
    """

    offset: int
    size: int
    shape: tuple[int, ...]


ABSENT = TensorLocation(-1, 0, ())


class DeviceLocation(NamedTuple):
    """The location of a tensor in the memory of a GPU, stored in the message's data instead of the tensor.

    Attributes:
        handle: The handle with which another process opens the memory.
        gpu: The id of the GPU, the same in all processes.
        offset: Where the tensor starts in that memory.
    """

    handle: bytes
    gpu: bytes
    offset: int

    def to_bytes(self) -> bytes:
        """Encodes it."""
        return _DEVICE_LOCATION.pack(*self)

    @classmethod
    def read(cls, buffer: Any, offset: int) -> DeviceLocation:
        """Decodes the result of `to_bytes`.

        Raises:
            ProtocolError: It lies outside the buffer.
        """
        if not 0 <= offset <= len(buffer) - DEVICE_LOCATION_SIZE:
            raise ProtocolError("a tensor lies outside its message")
        return cls(*_DEVICE_LOCATION.unpack_from(buffer, offset))


class TensorColumn(NamedTuple):
    """One input or output over all requests of a batch.

    ``position`` is the position of the input or output in the model's configuration.

    A stacked column is a single tensor: the requests' tensors lie back to back along the first dimension. Otherwise
    there is one tensor per request. A stacked output that is part of an input may lie in the data of the batch itself,
    and a stacked tensor in the memory of a GPU: then its offset is that of a `DeviceLocation`.
    """

    position: int
    datatype: int
    stacked: bool
    tensors: Sequence[TensorLocation]
    in_batch: bool = False
    on_device: bool = False


class ParameterType(enum.IntEnum):
    """Triton's types of request parameters."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 4


ParameterValue = Union[str, int, bool, float]


def aligned(size: int) -> int:
    """Rounds a size up to a multiple of ``ALIGNMENT``."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def signed(number: int) -> int:
    """Converts an unsigned 64-bit number to a signed word."""
    return number - (1 << 64) if number >= 1 << 63 else number


def bits_of(value: float) -> int:
    """Returns the bits of a float as a word."""
    bits: int = _INTEGER.unpack(_DOUBLE.pack(value))[0]
    return bits


def float_of(word: int) -> float:
    """Returns the float whose bits a word holds."""
    value: float = _DOUBLE.unpack(_INTEGER.pack(word))[0]
    return value


def encode_text(text: str) -> bytes:
    """Encodes a string."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, for example in an exception's text, must not fail the batch
        return text.encode("utf-8", "backslashreplace")


def text_of(data: bytes) -> str:
    """Decodes bytes to a string, which `encode_text` encodes to the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def heap_offset(message: bytes) -> int:
    """Returns where a message's strings start."""
    offset: int = _INTEGER.unpack_from(message)[0]
    return offset


class MessageWriter:
    """Collects the words and strings of a message. The first two words are the offsets of the heap and of the data."""

    __slots__ = ("_heap", "words")

    def __init__(self) -> None:
        self.words: list[int] = [0, 0]
        self._heap = bytearray()

    def text(self, text: str) -> None:
        """Adds a string."""
        data = encode_text(text)
        self.words += (len(self._heap), len(data))
        self._heap += data

    def columns(self, columns: Sequence[TensorColumn]) -> None:
        """Adds the inputs or outputs of a batch."""
        words = self.words
        words.append(len(columns))
        for position, datatype, stacked, tensors, in_batch, on_device in columns:
            words += (position, datatype, _ON_DEVICE if on_device else _IN_BATCH if in_batch else int(stacked))
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

    def to_bytes(self) -> bytes:
        """Returns the message's header; the data starts right after it."""
        words = self.words
        count = len(words)
        size = count * 8 + len(self._heap)
        words[0], words[1] = count * 8, aligned(size)
        return struct.pack(f"<{count}q{len(self._heap)}s{words[1] - size}x", *words, self._heap)


class MessageReader:
    """Reads the message at ``offset`` in ``buffer``.

    The peer is not trusted: this class, and the functions that use it for decoding, raise ProtocolError for a malformed
    message.
    """

    __slots__ = ("_buffer", "_heap_size", "_heap_start", "_position", "_words", "data_offset")

    def __init__(self, buffer: Any, offset: int, size: int) -> None:
        if size < _TEXT.size:
            raise ProtocolError("a message is too short to have a head")
        heap_offset, self.data_offset = _TEXT.unpack_from(buffer, offset)
        if not _TEXT.size <= heap_offset <= self.data_offset <= size:
            raise ProtocolError("the parts of a message lie outside it")
        self._buffer = buffer
        self._heap_start = offset + heap_offset
        self._heap_size = self.data_offset - heap_offset
        self._words: tuple[int, ...] = struct.unpack_from(f"<{heap_offset // 8}q", buffer, offset)
        self._position = 2

    @property
    def position(self) -> int:
        """The number of words before the next one."""
        return self._position

    def word(self) -> int:
        """Reads the next word."""
        position = self._position
        self._position = position + 1
        try:
            return self._words[position]
        except IndexError:
            raise ProtocolError("a message ends too early") from None

    def count(self) -> int:
        """Reads the next word as a count."""
        count = self.word()
        if count < 0:
            raise ProtocolError("a message has a negative count")
        return count

    def take(self, count: int) -> tuple[int, ...]:
        """Reads the next ``count`` words."""
        position = self._position
        self._position = end = position + count
        if not position <= end <= len(self._words):
            raise ProtocolError("a message ends too early")
        return self._words[position:end]

    def tensor(self) -> TensorLocation:
        """Reads the next tensor location."""
        offset, size, rank = self.take(3)
        if rank < 0:
            raise ProtocolError("a tensor has less than no dimensions")
        return TensorLocation(offset, size, self.take(rank))

    def text(self) -> str:
        """Reads the next string."""
        offset, size = self.take(2)
        if offset < 0 or size < 0 or offset + size > self._heap_size:
            raise ProtocolError("a string lies outside its message")
        start = self._heap_start + offset
        return bytes(self._buffer[start : start + size]).decode("utf-8", "surrogateescape")

    def parameters(self) -> dict[str, ParameterValue]:
        """Reads the next parameters."""
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

    def columns(self, request_count: int) -> list[TensorColumn]:
        """Reads the inputs or outputs of a batch of ``request_count`` requests."""
        words = self._words
        count = self.count()
        position = self._position
        columns = []
        try:
            for _ in range(count):
                number, datatype, place = words[position : position + 3]
                if not 0 <= place <= _ON_DEVICE:
                    raise ProtocolError(f"a message has a column in an unknown place: {place}")
                position += 3
                tensors = []
                for _ in range(1 if place else request_count):
                    offset, size, rank = words[position : position + 3]
                    position += 3
                    if rank < 0:
                        raise ProtocolError("a tensor has less than no dimensions")
                    tensors.append(TensorLocation(offset, size, words[position : position + rank]))
                    position += rank
                column = TensorColumn(number, datatype, place != 0, tensors, place == _IN_BATCH, place == _ON_DEVICE)
                columns.append(column)
        except ValueError:  # there are too few words to unpack
            raise ProtocolError("a message ends too early") from None
        self._position = position
        self.take(0)  # the last shape may have been cut short
        return columns
