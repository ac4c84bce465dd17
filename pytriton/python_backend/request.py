"""Requests that a model sends to other models."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Awaitable, Collection, Sequence
from typing import Any

from pytriton.proxy.cuda.driver import CudaError, id_of
from pytriton.proxy.services.messages import InferenceCall, ServiceTensor
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.types import Array
from pytriton.python_backend.datatypes import BF16, OPAQUE
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.flags import TRITONSERVER_MEMORY_GPU, PreferredMemory
from pytriton.python_backend.response import checked_parameters
from pytriton.python_backend.sender import InferenceResponseSender
from pytriton.python_backend.tensor import Tensor, texts_of
from pytriton.python_backend.texts import text_of
from pytriton.python_backend.trace import InferenceTrace


class InferenceRequest:
    """A request to any model of the server. The requests that ``execute`` gets have the same methods.

    Args:
        model_name: The model's name.
        requested_output_names: Names of the requested outputs.
        inputs: The inputs.
        request_id: An id, which the response repeats.
        correlation_id: The sequence that the request belongs to, a number or a string; 0 and "" for none.
        model_version: The version; -1 lets the server choose.
        flags: The sum of ``TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`` and ``…_SEQUENCE_END``.
        timeout: In microseconds; 0 for none.
        preferred_memory: Whether outputs that the model produces on a GPU stay there; by default, they are copied to
            memory.
        trace: The trace that the request belongs to, from ``request.trace()``. By default, the current span, if
            OpenTelemetry is in use.
        parameters: Request parameters: strings, integers, booleans and floats by name.

    Raises:
        TritonModelException: An argument has an invalid value.
        TypeError: An argument is of another type.
    """

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_output_names",
        "_parameters",
        "_preferred_gpu",
        "_request_id",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        model_name: str,
        requested_output_names: Collection[str],
        inputs: Sequence[Tensor],
        request_id: str = "",
        correlation_id: int | str = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self._model_name = text_of(model_name, "a model's name")
        self._output_names = _output_names(requested_output_names, self._model_name)
        self._inputs = _checked_inputs(inputs, self._model_name)
        self._request_id = text_of(request_id, "a request's id")
        self._correlation_id = _correlation_id(correlation_id)
        self._model_version = operator.index(model_version)
        self._flags = _number(flags, "flags", bits=32)
        self._timeout = _number(timeout, "timeout", bits=63)
        self._preferred_gpu = _preferred_gpu(preferred_memory)
        self._trace = trace
        self._parameters = checked_parameters(parameters) if parameters else {}

    def model_name(self) -> str:
        """Returns the name of the model."""
        return self._model_name

    def inputs(self) -> list[Tensor]:
        """Returns the inputs."""
        return list(self._inputs)

    def requested_output_names(self) -> set[str]:
        """Returns the names of the requested outputs."""
        return set(self._output_names)

    def request_id(self) -> str:
        """Returns the request's id, empty if it has none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Returns the id of the request's sequence, a number or a string; 0 if it belongs to none."""
        return self._correlation_id

    def flags(self) -> int:
        """Returns the sum of ``TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`` and ``…_SEQUENCE_END``."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets what `flags` returns."""
        self._flags = flags

    def timeout(self) -> int:
        """Returns the timeout in microseconds; 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """Returns the request parameters as a JSON object."""
        return json.dumps(self._parameters)

    def trace(self) -> InferenceTrace:
        """Returns the request's trace, whose ``get_context()`` is None if there is no OpenTelemetry context."""
        return self._trace or InferenceTrace()

    def is_cancelled(self) -> bool:
        """Returns whether the client has cancelled or disconnected, or the timeout has passed."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """Returns a sender for a response at any time, or for several if the model is decoupled.

        Raises:
            TritonModelException: It is not a request that ``execute`` received.
        """
        raise TritonModelException("only requests that execute() receives have a response sender")

    def set_release_flags(self, flags: int) -> None:
        """With ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE``, makes the server schedule the request again.

        It does so once ``execute`` has returned. A model that is not decoupled returns None in place of its response.

        Raises:
            TritonModelException: It is not a request that ``execute`` received, or the flags are invalid.
        """
        raise TritonModelException("only requests that execute() receives can be rescheduled")

    def exec(self, decoupled: bool = False) -> Any:
        """Sends the request and waits for the response.

        Args:
            decoupled: Whether there may be any number of responses.

        Returns:
            The `InferenceResponse`; with ``decoupled`` an iterator over them, which has ``cancel()``.

        Raises:
            TritonModelException: The server cannot be reached from here.
        """
        from pytriton.python_backend import inference

        return inference.stream(self._call()) if decoupled else inference.infer(self._call())

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """Sends the request at once, and returns a task that waits for what `exec` returns, for event loops.

        With ``decoupled``, the task waits for the first response, and the iterator also supports ``async for``.
        """
        from pytriton.python_backend import inference

        return inference.astream(self._call()) if decoupled else inference.ainfer(self._call())

    def _call(self) -> InferenceCall:
        return InferenceCall(
            self.model_name(),
            _inputs_by_name(self.inputs()),
            version=self._model_version,
            outputs=self._output_names,
            request_id=self.request_id(),
            correlation_id=self.correlation_id() or 0,
            flags=self.flags(),
            timeout_us=self.timeout(),
            parameters=self._parameters,
            trace_context=self.trace().get_context() or "",
            preferred_gpu=self._preferred_gpu,
        )


def _preferred_gpu(memory: PreferredMemory | None) -> bytes:
    if memory is None or memory.type != TRITONSERVER_MEMORY_GPU:
        return b""
    with contextlib.suppress(CudaError):  # without a GPU, outputs are in memory
        return id_of(memory.device_id)
    return b""


def _output_names(names: Collection[Any], model: str) -> list[str]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Collection):
        raise TypeError(
            f"a request to model {model!r} has requested_output_names={names!r}, of type {type(names).__name__}: use a "
            "list of strings"
        )
    return [text_of(name, "a requested output's name") for name in names]


def _checked_inputs(inputs: Sequence[Tensor], model: str) -> list[Tensor]:
    if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
        raise TypeError(
            f"inputs of a request to model {model!r} are of type {type(inputs).__name__}: use a list of pb_utils.Tensor"
        )
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(
                f"a request to model {model!r} has {type(tensor).__name__} among its inputs: use pb_utils.Tensor"
            )
    return list(inputs)


def _inputs_by_name(tensors: Sequence[Tensor]) -> dict[str, Array | ServiceTensor]:
    inputs = {tensor.name(): _input_of(tensor) for tensor in tensors}
    if len(inputs) < len(tensors):
        names = [tensor.name() for tensor in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise TritonModelException(f"input {twice!r} already exists in request: give each input once")
    return inputs


def _correlation_id(value: Any) -> int | str:
    if isinstance(value, (str, bytes)):
        return text_of(value, "a correlation id")
    return _number(value, "correlation_id", bits=64)


def _number(value: Any, name: str, *, bits: int) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise TritonModelException(f"a request has {name}={number}: use a number from 0 to {(1 << bits) - 1}")
    return number


def _input_of(tensor: Tensor) -> Array | ServiceTensor:
    array = tensor._array
    if isinstance(array, GpuTensor) or array.dtype is not OPAQUE:
        return texts_of(array)
    return ServiceTensor(BF16, array.shape, array.ravel().view("u1"))
