"""Tensors of inference requests over HTTP: a part of the JSON, and binary content behind it.

The classes have the interface of tritonclient's, as far as the clients use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import datatype_by_name
from pytriton.proxy.tensors.bytes_tensor import decode_elements, encode_elements

Content = bytes | memoryview

_COPIED_BYTES = 65536
"""Up to this size, tensors are copied: it takes less time than to look after a view."""
_EMPTY = b""


class InferInput:
    """An input of a request.

    Args:
        name: Its name.
        shape: Its shape, the batch included.
        datatype: The name of its datatype.

    Attributes:
        description: Its part of the JSON.
        content: Its binary content.
    """

    __slots__ = ("content", "description")

    def __init__(self, name: str, shape: list[int], datatype: str) -> None:
        """Has no content yet."""
        self.description: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        self.content: Content = _EMPTY

    def set_data_from_numpy(self, array: Array) -> InferInput:
        """Sets the content, of which a large array's is not copied."""
        if self.description["datatype"] == "BYTES":
            self.content = encode_elements(array.ravel().tolist())
        elif array.nbytes <= _COPIED_BYTES:
            self.content = array.tobytes()
        else:
            self.content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.description["parameters"] = {"binary_data_size": len(self.content)}
        return self

    def set_shared_memory(self, region: str, nbytes: int, offset: int = 0) -> InferInput:
        """Takes the content from shared memory that is registered with the server."""
        self.description["parameters"] = _in_region(region, nbytes, offset)
        return self


class InferRequestedOutput:
    """An output that is requested.

    Args:
        name: Its name.

    Attributes:
        description: Its part of the JSON.
    """

    __slots__ = ("description",)

    def __init__(self, name: str) -> None:
        """Requests binary content."""
        self.description: dict[str, Any] = {"name": name, "parameters": {"binary_data": True}}

    def set_shared_memory(self, region: str, nbytes: int, offset: int = 0) -> None:
        """Has the server write the content to shared memory."""
        self.description["parameters"] = {"binary_data": False, **_in_region(region, nbytes, offset)}


class InferResult:
    """The response to an inference request.

    Args:
        body: The response's body; arrays of large outputs are views of it.
        header_size: The length of its JSON; None if there is nothing else.

    Attributes:
        outputs: The outputs' parts of the JSON.

    Raises:
        ValueError: It is not JSON; TypeError or KeyError, it is not Triton's.
    """

    __slots__ = ("_body", "_places", "outputs")

    def __init__(self, body: Content, header_size: int | None) -> None:
        """Reads the JSON, and finds the outputs."""
        head = body if header_size is None else body[:header_size]
        message = json.loads(head if isinstance(head, bytes) else bytes(head))
        self.outputs: list[dict[str, Any]] = message.get("outputs") or []
        self._body = body
        self._places: dict[str, tuple[Mapping[str, Any], int]] = {}
        start = header_size or len(body)
        for output in self.outputs:
            self._places[output["name"]] = output, start
            start += (output.get("parameters") or {}).get("binary_data_size", 0)

    def as_numpy(self, name: str) -> Array:
        """Returns an output, which is read-only if its content is binary.

        Raises:
            ValueError: The content does not fit shape and datatype.
        """
        output, start = self._places[name]
        size = (output.get("parameters") or {}).get("binary_data_size")
        dtype = _dtype_of(output["datatype"])
        if size is None:
            return np.array(output["data"], dtype).reshape(output["shape"])
        content = self._body[start : start + size]
        if dtype.hasobject:
            elements = decode_elements(bytes(content))
            array = np.empty(len(elements), dtype)
            array[:] = elements
            return array.reshape(output["shape"])
        if size <= _COPIED_BYTES:  # which would keep all of the body
            content = bytes(content)
        array = np.frombuffer(content, dtype)
        if not array.flags.aligned:
            array = np.frombuffer(bytes(content), dtype)
        return array.reshape(output["shape"])


def outputs_of(result: InferResult) -> list[tuple[str, str, Sequence[int]]]:
    """Lists the outputs of a response: name, datatype and shape."""
    return [(output["name"], output["datatype"], output["shape"]) for output in result.outputs]


def _in_region(region: str, nbytes: int, offset: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"shared_memory_region": region, "shared_memory_byte_size": nbytes}
    if offset:
        parameters["shared_memory_offset"] = offset
    return parameters


def _dtype_of(datatype: str) -> np.dtype[Any]:
    try:
        return datatype_by_name(datatype).numpy_dtype
    except PyTritonBadParameterError as error:
        raise ValueError(str(error)) from error
