"""Names, ids and messages, which models pass as strings or bytes."""

from __future__ import annotations

from typing import Any


def text_of(value: Any, what: str) -> str:
    """Returns a string, decoded from bytes if necessary.

    Args:
        value: A string, or bytes in UTF-8.
        what: What the text is, for the error message.

    Raises:
        TypeError: It is neither.
        ValueError: The bytes are not UTF-8.

    Examples:
        >>> text_of(b"OUTPUT0", "a tensor's name")
        'OUTPUT0'
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{what} is {value!r}, of type {type(value).__name__}: use a string")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is {value!r}, which is not UTF-8: {error}") from None
