"""The codec of BYTES tensors in `pb_utils`: each element after its length."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton.proxy.tensors.bytes_tensor import decode_elements, encode_elements
from pytriton.proxy.types import Array
from pytriton.python_backend.errors import TritonModelException


class SerializedTensor(bytes):
    """The elements of a BYTES tensor, each after its length; ``item()`` is for code that expects an array of them."""

    def item(self) -> bytes:
        """Returns itself."""
        return self


def serialize_byte_tensor(input_tensor: Array) -> SerializedTensor:
    r"""Encodes the elements of an array, each after its length, as one run of bytes.

    Args:
        input_tensor: An array of bytes or objects; objects other than bytes are converted with ``str``.

    Returns:
        The bytes.

    Raises:
        TritonModelException: It is an array of another dtype.

    Examples:
        >>> serialize_byte_tensor(np.array([b"ab", "c"], object))
        b'\x02\x00\x00\x00ab\x01\x00\x00\x00c'
    """
    if input_tensor.dtype.kind not in "OSU":
        raise TritonModelException(f"an array of {input_tensor.dtype} is not a tensor of BYTES: use bytes or objects")
    items = input_tensor.ravel().tolist()
    return SerializedTensor(encode_elements(item if isinstance(item, bytes) else str(item).encode() for item in items))


def deserialize_bytes_tensor(encoded_tensor: Any) -> Array:
    """Decodes the result of `serialize_byte_tensor` into an array of one dimension.

    Args:
        encoded_tensor: Bytes, an array of bytes or uint8.

    Raises:
        TritonModelException: The data end within an element.
    """
    if isinstance(encoded_tensor, np.ndarray) and encoded_tensor.dtype == np.object_:
        encoded_tensor = encoded_tensor.item() if encoded_tensor.size else b""
    try:
        items = decode_elements(bytes(encoded_tensor))
    except ValueError as error:
        raise TritonModelException(str(error)) from error
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array
