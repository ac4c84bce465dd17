"""Responses to inference requests over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from pytriton.client.core.inputs import Array
from pytriton.client.core.tensors import COPIED_BYTES, Content, array_of, dtype_of

_RAW_OUTPUT_CONTENTS = service_pb2.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE = service_pb2.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
# The lower three bits of a field's tag say how it is encoded.
_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}


class InferResult:
    """The response to an inference request.

    Args:
        message: The response.
        contents: The contents of its outputs, if they are binary.

    Attributes:
        message: The response; large contents are not in it.
        outputs: Name, datatype and shape of each output.
    """

    __slots__ = ("_contents", "message", "outputs")

    def __init__(self, message: Any, contents: Sequence[Content]) -> None:
        self.message = message
        self.outputs = [(output.name, output.datatype, tuple(output.shape)) for output in message.outputs]
        self._contents = contents

    def array(self, index: int) -> Array:
        """Returns the array of an output, which is read-only.

        Raises:
            ValueError: The content does not fit shape and datatype.
        """
        _, datatype, shape = self.outputs[index]
        if index < len(self._contents):
            return array_of(self._contents[index], datatype, shape)
        dtype = dtype_of(datatype)
        elements = self.message.outputs[index].contents.bytes_contents if dtype.hasobject else ()
        return np.array(list(elements), dtype).reshape(shape)


def read_response(body: bytes) -> InferResult:
    """Reads the response to an inference request; arrays of large outputs are views of it.

    Raises:
        ValueError: It is no such response; DecodeError, if Protocol Buffers' library finds out.
    """
    if len(body) > COPIED_BYTES:
        return _read_large(body, 0, len(body))
    message = service_pb2.ModelInferResponse.FromString(body)
    return InferResult(message, message.raw_output_contents)


def read_stream_response(body: bytes) -> tuple[InferResult | None, str]:
    """Reads a response of a stream; returns the result, or None and the error's message.

    Raises:
        ValueError: See `read_response`.
    """
    if len(body) > COPIED_BYTES:
        for number, _, start, end in _fields(body, 0, len(body)):
            if number == _INFER_RESPONSE:
                return _read_large(body, start, end), ""
    response = service_pb2.ModelStreamInferResponse.FromString(body)
    if response.error_message:
        return None, response.error_message
    message = response.infer_response
    return InferResult(message, message.raw_output_contents), ""


def _read_large(body: bytes, start: int, stop: int) -> InferResult:
    """Reads everything but the contents of outputs, which Protocol Buffers' library would copy twice."""
    contents, others = [], []
    for number, field, content, end in _fields(body, start, stop):
        if number == _RAW_OUTPUT_CONTENTS:
            contents.append(memoryview(body)[content:end])
        else:
            others.append(body[field:end])
    return InferResult(service_pb2.ModelInferResponse.FromString(b"".join(others)), contents)


def _fields(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the fields of an encoded message: number, and where the field begins, its content begins and both end.

    Source: https://protobuf.dev/programming-guides/encoding.

    Raises:
        ValueError: It is no message.
    """
    while position < stop:
        tag, content = _varint(message, position, stop)
        kind = tag & 7
        if kind == _BYTES:
            size, content = _varint(message, content, stop)
            end = content + size
        elif kind == _VARINT:
            end = _varint(message, content, stop)[1]
        elif kind in _FIXED_SIZES:
            end = content + _FIXED_SIZES[kind]
        else:
            raise ValueError(f"a field of the response has the unknown type {kind}")
        if end > stop:
            raise ValueError("the response ends in the middle of a field")
        yield tag >> 3, position, content, end
        position = end


def _varint(message: bytes, position: int, stop: int) -> tuple[int, int]:
    """Reads an integer; returns it, and where it ends."""
    value = shift = 0
    while position < stop:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("the response ends in the middle of a number")
