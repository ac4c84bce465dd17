"""Calls to other models of the server, and their replies, with arrays instead of memory locations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from pytriton.exceptions import PyTritonInferenceError
from pytriton.model_config.datatypes import BYTES_CODE, DTYPE_BY_CODE
from pytriton.proxy.tensors.bytes_tensor import bytes_array
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import MessageWriter, ParameterValue, encode_text, heap_offset, signed, text_of
from pytriton.proxy.wire.service import InferenceCallInput


class ServiceTensor(NamedTuple):
    """A tensor in memory.

    Attributes:
        datatype: A code of ``TRITONSERVER_DataType``.
        shape: The dimensions.
        data: The bytes, as an array of uint8, or a `GpuTensor`. In a reply, the array is a view of shared memory, valid
            for as long as it is referenced. BYTES are the lengths of all elements (uint32), then the elements back to
            back.
    """

    datatype: int
    shape: tuple[int, ...]
    data: Array

    def array(self) -> Array:
        """Returns the tensor as an array: a view of the bytes, or an array of objects for BYTES; or as a `GpuTensor`.

        Raises:
            PyTritonBadParameterError: The datatype is BF16, and ml_dtypes is not installed.
        """
        if isinstance(self.data, GpuTensor):
            return self.data
        if self.datatype != BYTES_CODE:
            return np.ndarray(self.shape, DTYPE_BY_CODE[self.datatype], cast("Any", self.data))
        return bytes_array(self.data, 0, self.shape)


@dataclass
class InferenceCall:
    """A request to a model of the server.

    Attributes:
        model: The model's name.
        inputs: Inputs by name: arrays of any dtype that Triton has, of bytes or of str, C-contiguous or not; or tensors
            with their datatype, for datatypes that NumPy lacks.
        version: The model's version; -1 lets Triton choose.
        outputs: Names of the requested outputs; None requests all.
        request_id: An id, which the reply repeats.
        correlation_id: The sequence that the request belongs to, a number or a string; 0 for none.
        flags: The sum of ``SEQUENCE_START`` and ``SEQUENCE_END``.
        priority: 1 is the highest; 0 is the model's default.
        timeout_us: The request's timeout in microseconds; 0 for none.
        parameters: Request parameters.
        batch: The sequence of the batch for which the call is made; None leaves that to `ServerClient`.
        trace_context: The trace to which the request belongs, as JSON; empty for the current one, if any.
        preferred_gpu: The id of the GPU on which outputs are preferred, if the model produces them on a GPU; empty for
            none.
    """

    model: str
    inputs: Mapping[str, Array | ServiceTensor]
    version: int = -1
    outputs: Sequence[str] | None = None
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    batch: int | None = None
    trace_context: str = ""
    preferred_gpu: bytes = b""


@dataclass
class InferenceReply:
    """A response to a call.

    Attributes:
        tensors: The outputs by name; empty if there is an error.
        final: Whether this is the last response.
        model: The model that responded.
        version: Its version.
        request_id: The id of the call.
        parameters: Response parameters.
        error: Why the request failed, or None.
    """

    tensors: dict[str, ServiceTensor] = field(default_factory=dict)
    final: bool = True
    model: str = ""
    version: int = -1
    request_id: str = ""
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: PyTritonInferenceError | None = None

    @property
    def outputs(self) -> dict[str, Array]:
        """The outputs by name, as views of shared memory (`ServiceTensor.array`)."""
        return {name: tensor.array() for name, tensor in self.tensors.items()}

    def check(self) -> InferenceReply:
        """Returns the reply, or raises its error.

        Raises:
            PyTritonInferenceError: The request failed.
        """
        if self.error is not None:
            raise self.error
        return self


def write_call(call: InferenceCall, inputs: list[InferenceCallInput], batch: int) -> bytes:
    """Encodes a call's header. Cached except for the id, since most calls of a model differ only in their data."""
    if batch > 0 or call.correlation_id or call.parameters or call.trace_context:
        return encode_call(call, inputs, batch).to_bytes()
    outputs = None if call.outputs is None else tuple(call.outputs)
    request_id = encode_text(call.request_id)
    before, behind = _write_call(
        call.model,
        call.version,
        outputs,
        call.flags,
        call.priority,
        call.timeout_us,
        tuple(inputs),
        batch,
        len(request_id),
        call.preferred_gpu,
    )
    return b"".join((before, request_id, behind))


@functools.lru_cache(maxsize=64)
def _write_call(
    model: str,
    version: int,
    outputs: tuple[str, ...] | None,
    flags: int,
    priority: int,
    timeout_us: int,
    inputs: tuple[InferenceCallInput, ...],
    batch: int,
    id_size: int,
    preferred_gpu: bytes,
) -> tuple[bytes, bytes]:
    """Returns the parts of the header before and after the id."""
    call = InferenceCall(
        model,
        {},
        version,
        outputs,
        "i" * id_size,
        flags=flags,
        priority=priority,
        timeout_us=timeout_us,
        preferred_gpu=preferred_gpu,
    )
    message = encode_call(call, list(inputs), batch).to_bytes()
    start = heap_offset(message) + len(encode_text(model))  # the id is the second text
    return message[:start], message[start + id_size :]


def encode_call(call: InferenceCall, inputs: list[InferenceCallInput], batch: int) -> MessageWriter:
    """Encodes a call's header."""
    writer = MessageWriter()
    words = writer.words
    writer.text(call.model)
    words.append(call.version)
    writer.text(call.request_id)
    is_text = isinstance(call.correlation_id, str)
    words += (call.flags, call.priority, call.timeout_us, 0 if is_text else signed(cast("int", call.correlation_id)))
    writer.text(cast("str", call.correlation_id) if is_text else "")
    words.append(batch)
    writer.text(text_of(call.preferred_gpu))
    words.append(-1 if call.outputs is None else len(call.outputs))
    for name in call.outputs or ():
        writer.text(name)
    writer.parameters(call.parameters)
    words.append(len(inputs))
    for name, datatype, (offset, size, shape) in inputs:
        writer.text(name)
        words += (datatype, offset, size, len(shape))
        words += shape
    writer.text(call.trace_context)
    return writer
