"""Protocol Buffers' encoding of fields with a length, such as all tensors and messages of Triton.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

_KIND_BITS, _KIND, _HAS_LENGTH = 3, 7, 2  # the lower bits of a field's tag give its encoding
_LONGEST_NUMBER = 5  # bytes of a number below 2**35; messages have less than 2**31 bytes


class UnusualError(Exception):
    """A message has an unusual feature, and is left to Protocol Buffers' library."""


def tag_of(number: int) -> bytes:
    """Encodes the tag of a field with a length; the length and the content follow it."""
    return encode_number(number << _KIND_BITS | _HAS_LENGTH)


def encode_number(value: int) -> bytes:
    """Encodes a number: seven bits in each byte, the lowest ones first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def split(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of an encoded message: number, start of the field, start of its content, and end.

    Args:
        message: A buffer that contains the message.
        position: Start of the message.
        stop: End of the message.

    Raises:
        UnusualError: A field has no length, or extends beyond the message.
    """
    while position < stop:
        tag, content = _decode_number(message, position)
        size, content = _decode_number(message, content)
        end = content + size
        if tag & _KIND != _HAS_LENGTH or end > stop:
            raise UnusualError
        yield tag >> _KIND_BITS, position, content, end
        position = end


def _decode_number(message: bytes, position: int) -> tuple[int, int]:
    """Decodes a number; returns it, and its end."""
    value = 0
    for index, byte in enumerate(message[position : position + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise UnusualError
