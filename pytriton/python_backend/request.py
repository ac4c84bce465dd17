"""Requests: those that a model is to answer, and those that it makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytriton.proxy.services.messages import InferenceCall, ServiceTensor
from pytriton.proxy.types import Array
from pytriton.python_backend.datatypes import BF16, OPAQUE
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.flags import (
    PreferredMemory,
)
from pytriton.python_backend.sender import InferenceResponseSender
from pytriton.python_backend.tensor import Tensor, texts_of


class InferenceRequest:
    """A request to any model of the server. Those that ``execute`` is given have the same methods.

    Args:
        model_name: Who is asked.
        requested_output_names: Which outputs are wanted.
        inputs: The inputs.
        request_id: Given back with the response.
        correlation_id: Of the sequence that it belongs to: a number or a string; 0 and "" are none.
        model_version: -1 leaves it to the server.
        flags: ``TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`` and ``…_SEQUENCE_END``, added up.
        timeout: In microseconds; 0 is none.
        preferred_memory: Taken, and without effect.
        trace: Taken, and without effect.
        parameters: What is sent besides tensors: strings, integers, booleans and floats by name.

    Raises:
        TritonModelException: An argument has a value that cannot work.
    """

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_output_names",
        "_parameters",
        "_request_id",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        model_name: str,
        requested_output_names: Sequence[str],
        inputs: Sequence[Tensor],
        request_id: str = "",
        correlation_id: int | str = 0,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: int | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    f"a request to model {model_name!r} has {type(tensor).__name__} among its inputs: use "
                    "pb_utils.Tensor"
                )
        self._model_name = model_name
        self._output_names = list(requested_output_names)
        self._inputs = list(inputs)
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._model_version = int(model_version)
        self._flags = flags
        self._timeout = timeout
        self._trace = trace
        self._parameters = dict(parameters or {})

    def model_name(self) -> str:
        """Name of the model that it is for."""
        return self._model_name

    def inputs(self) -> list[Tensor]:
        """Its inputs."""
        return self._inputs

    def requested_output_names(self) -> list[str]:
        """Names of the outputs that are wanted."""
        return self._output_names

    def request_id(self) -> str:
        """Its id, empty where it has none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """That of the sequence that it belongs to: a number or a string; 0 where it belongs to none."""
        return self._correlation_id

    def flags(self) -> int:
        """``TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`` and ``…_SEQUENCE_END``, added up."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets what `flags` returns."""
        self._flags = flags

    def timeout(self) -> int:
        """Its timeout in microseconds; 0 is none."""
        return self._timeout

    def parameters(self) -> str:
        """What it has besides tensors, as a JSON object."""
        return json.dumps(self._parameters)

    def trace(self) -> int | None:
        """Number of its trace, or None where it is not traced."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether nobody wants a response any more: the client has gone or cancelled, or the timeout has passed."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """How to answer it at any time, and more than once where the model is decoupled.

        Raises:
            TritonModelException: It is not one that ``execute`` was given.
        """
        raise TritonModelException("only requests that execute() was given have a response sender")

    def set_release_flags(self, flags: int) -> None:
        """With ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE``, the server sends the request again.

        It does so once ``execute`` has returned. A model that is not decoupled returns None in place of its response.

        Raises:
            TritonModelException: It is not one that ``execute`` was given, or there are no such flags.
        """
        raise TritonModelException("only requests that execute() was given can be rescheduled")

    def exec(self, decoupled: bool = False) -> Any:
        """Has the model infer, and waits.

        Args:
            decoupled: Whether there may be any number of responses.

        Returns:
            The `InferenceResponse`; with ``decoupled`` an iterator of them, which has ``cancel()``.

        Raises:
            TritonModelException: The server cannot be asked from here.
        """
        from pytriton.python_backend import inference

        return inference.stream(self._call()) if decoupled else inference.infer(self._call())

    async def async_exec(self, decoupled: bool = False) -> Any:
        """The same in an event loop. What comes with ``decoupled`` can be iterated with ``async for`` as well."""
        from pytriton.python_backend import inference

        return inference.stream(self._call()) if decoupled else await inference.ainfer(self._call())

    def _call(self) -> InferenceCall:
        return InferenceCall(
            self.model_name(),
            {tensor.name(): _input_of(tensor) for tensor in self.inputs()},
            version=self._model_version,
            outputs=self.requested_output_names(),
            request_id=self.request_id(),
            correlation_id=self.correlation_id() or 0,
            flags=self.flags(),
            timeout_us=self.timeout(),
            parameters=self._parameters,
        )


def _input_of(tensor: Tensor) -> Array | ServiceTensor:
    array = tensor._array
    if array.dtype is not OPAQUE:
        return texts_of(array)
    return ServiceTensor(BF16, array.shape, array.ravel().view("u1"))
