"""Tensors of inference requests, for either protocol; their names are those of tritonclient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import datatype_by_name
from pytriton.proxy.tensors.bytes_tensor import decode_elements, encode_elements

Content = bytes | memoryview
Region = tuple[tuple[str, str | int], ...]
"""A location in shared memory: the parameters of Triton's extension, and their values."""

COPIED_BYTES = 65536
"""Up to this size, tensors are copied: that takes less time than managing a view."""
_SMALL_PART = 4


class InferInput:
    """An input of a request.

    Args:
        name: Its name.
        shape: Its shape, including the batch.
        datatype: The name of its datatype.

    Attributes:
        content: Its binary content; None if it is in shared memory.
        region: The location of the content in shared memory, if it is there.
    """

    __slots__ = ("content", "datatype", "name", "region", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], datatype: str) -> None:
        """Creates an input without content."""
        self.name = name
        self.shape = shape
        self.datatype = datatype
        self.content: Content | None = None
        self.region: Region = ()

    def set_data_from_numpy(self, array: Array) -> InferInput:
        """Sets the content; a large array is not copied."""
        self.region = ()
        if self.datatype == "BYTES":
            self.content = encode_elements(array.ravel().tolist())
        elif array.nbytes <= COPIED_BYTES:
            self.content = array.tobytes()
        else:
            self.content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return self

    def set_shared_memory(self, region: str, nbytes: int, offset: int = 0) -> InferInput:
        """Refers to content in shared memory that is registered with the server."""
        self.content = None
        self.region = _in_region(region, nbytes, offset)
        return self


class InferRequestedOutput:
    """A requested output.

    Args:
        name: Its name.

    Attributes:
        region: The location for its content in shared memory, if it goes there.
    """

    __slots__ = ("name", "region")

    def __init__(self, name: str) -> None:
        """Requests binary content."""
        self.name = name
        self.region: Region = ()

    def set_shared_memory(self, region: str, nbytes: int, offset: int = 0) -> None:
        """Requests that the server write the content to shared memory."""
        self.region = _in_region(region, nbytes, offset)


def array_of(content: Content, datatype: str, shape: Sequence[int]) -> Array:
    """Returns a read-only array with some binary content: a view if the content is large and aligned.

    Raises:
        ValueError: The content does not fit shape and datatype.
    """
    dtype = dtype_of(datatype)
    if dtype.hasobject:
        elements = decode_elements(bytes(content))
        array = np.empty(len(elements), dtype)
        array[:] = elements
        return array.reshape(shape)
    array = np.frombuffer(content, dtype)
    if isinstance(content, memoryview) and not (_is_large_part(content) and array.flags.aligned):
        array = np.frombuffer(bytes(content), dtype)
    return array.reshape(shape)


def _is_large_part(content: memoryview) -> bool:
    """Returns whether a view is a large part of the response, which it would keep in memory."""
    return len(content) > max(COPIED_BYTES, len(content.obj) // _SMALL_PART)  # type: ignore[arg-type]


@functools.cache
def dtype_of(datatype: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of a datatype.

    Raises:
        ValueError: Triton has no such datatype.
    """
    try:
        return datatype_by_name(datatype).numpy_dtype
    except PyTritonBadParameterError as error:
        raise ValueError(str(error)) from error


def _in_region(region: str, nbytes: int, offset: int) -> Region:
    place: Region = (("shared_memory_region", region), ("shared_memory_byte_size", nbytes))
    return (*place, ("shared_memory_offset", offset)) if offset else place
