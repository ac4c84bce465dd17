"""Responses to inference requests over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from pytriton.client.core.grpc import fields
from pytriton.client.core.inputs import Array
from pytriton.client.core.tensors import COPIED_BYTES, Content, array_of, dtype_of

_RAW_OUTPUT_CONTENTS = service_pb2.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE = service_pb2.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_TYPED_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The fields with elements that are not sent as raw contents."""


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
        typed = _TYPED_CONTENTS.get(datatype)
        elements = () if typed is None else getattr(self.message.outputs[index].contents, typed)
        array = np.array(list(elements), dtype_of(datatype)).reshape(shape)
        array.flags.writeable = False
        return array


def read_response(body: bytes) -> InferResult:
    """Reads the response to an inference request; arrays of large outputs are views of it.

    Raises:
        DecodeError: It is not a message of Protocol Buffers.
    """
    if len(body) > COPIED_BYTES:
        with contextlib.suppress(fields.UnusualError):
            return _read_large(body, 0, len(body))
    message = service_pb2.ModelInferResponse.FromString(body)
    return InferResult(message, message.raw_output_contents)


def read_stream_response(body: bytes) -> tuple[InferResult | None, str]:
    """Reads a response of a stream; returns the result, or None and the error's message.

    Raises:
        DecodeError: It is not a message of Protocol Buffers.
    """
    if len(body) > COPIED_BYTES:
        with contextlib.suppress(fields.UnusualError):
            number, _, start, end = next(fields.split(body, 0, len(body)))
            if number == _INFER_RESPONSE and end == len(body):
                return _read_large(body, start, end), ""
    response = service_pb2.ModelStreamInferResponse.FromString(body)
    if response.error_message:
        return None, response.error_message
    message = response.infer_response
    return InferResult(message, message.raw_output_contents), ""


def _read_large(body: bytes, start: int, stop: int) -> InferResult:
    """Cuts out contents of outputs, which Protocol Buffers' library would copy twice, and reads the rest by it."""
    contents, others = [], []
    for number, field, content, end in fields.split(body, start, stop):
        if number == _RAW_OUTPUT_CONTENTS:
            contents.append(memoryview(body)[content:end])
        else:
            others.append(body[field:end])
    return InferResult(service_pb2.ModelInferResponse.FromString(b"".join(others)), contents)
