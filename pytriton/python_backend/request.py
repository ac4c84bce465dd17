"""Requests: those that a model is to answer, and those that it makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.wire.inference import RequestMetadata
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.flags import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    PreferredMemory,
)
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.sender import Answering, InferenceResponseSender
from pytriton.python_backend.tensor import Tensor, unchecked

if TYPE_CHECKING:
    from pytriton.python_backend.execution import Senders

_RELEASE_FLAGS = (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


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

        return inference.stream(self) if decoupled else inference.infer(self)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """The same in an event loop. What comes with ``decoupled`` can be iterated with ``async for`` as well."""
        from pytriton.python_backend import inference

        return inference.stream(self) if decoupled else await inference.ainfer(self)


class ServedRequest(InferenceRequest):
    """A request that ``execute`` is given; it looks things up when they are first asked for.

    Args:
        batch: What it is part of.
        index: Its number.
        answering: How to answer it.
        output_names: Names of the model's outputs.
        model_name: The model's name.
    """

    __slots__ = (
        "_all_outputs",
        "_batch",
        "_index",
        "_own_flags",
        "_tensors",
        "answering",
        "has_sender",
        "is_rescheduled",
        "senders",
    )

    def __init__(
        self, batch: Batch, index: int, answering: Answering | None, output_names: list[str], model_name: str
    ) -> None:
        self._batch = batch
        self._index = index
        self._all_outputs = output_names
        self._model_name = model_name
        self._tensors: list[Tensor] | None = None
        self._own_flags: int | None = None
        self.senders: Senders | None = None
        self.answering = answering
        self.has_sender = False
        self.is_rescheduled = False

    @property
    def _details(self) -> RequestMetadata:
        return self._batch.metadata(self._index)

    def inputs(self) -> list[Tensor]:
        """See `InferenceRequest.inputs`."""
        if self._tensors is None:
            inputs = self._batch.inputs_of(self._index)
            self._tensors = [unchecked(name, array) for name, array in inputs.items()]
        return self._tensors

    def requested_output_names(self) -> list[str]:
        """See `InferenceRequest.requested_output_names`."""
        positions = self._batch.requested_outputs(self._index)
        return list(self._all_outputs) if positions is None else [self._all_outputs[each] for each in positions]

    def request_id(self) -> str:
        """See `InferenceRequest.request_id`."""
        return self._details.id

    def correlation_id(self) -> int | str:
        """See `InferenceRequest.correlation_id`."""
        return self._details.options.correlation_id

    def flags(self) -> int:
        """See `InferenceRequest.flags`."""
        return self._details.options.flags if self._own_flags is None else self._own_flags

    def set_flags(self, flags: int) -> None:
        """See `InferenceRequest.set_flags`."""
        self._own_flags = flags

    def timeout(self) -> int:
        """See `InferenceRequest.timeout`."""
        return self._details.options.timeout_us

    def priority(self) -> int:
        """0 where it has the model's default, 1 is the highest."""
        return self._details.options.priority

    def parameters(self) -> str:
        """See `InferenceRequest.parameters`."""
        return json.dumps(self._details.parameters)

    def trace(self) -> int | None:
        """See `InferenceRequest.trace`."""
        return self._details.options.trace or None

    def is_cancelled(self) -> bool:
        """See `InferenceRequest.is_cancelled`."""
        return self._batch.is_cancelled(self._index)

    def get_response_sender(self) -> InferenceResponseSender:
        """See `InferenceRequest.get_response_sender`."""
        if self.answering is None:
            if self.senders is None:
                raise TritonModelException("the request was answered when execute() returned")
            self.answering = self.senders.answering(self._index)
        self.has_sender = True
        return InferenceResponseSender(self.answering, self.is_cancelled)

    def set_release_flags(self, flags: int) -> None:
        """See `InferenceRequest.set_release_flags`."""
        if flags not in _RELEASE_FLAGS:
            raise TritonModelException(
                f"set_release_flags() has {flags!r}: use TRITONSERVER_REQUEST_RELEASE_ALL or …_RELEASE_RESCHEDULE"
            )
        self.is_rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """Refuses: it is to be answered."""
        raise TritonModelException("a request that execute() was given is answered: make an InferenceRequest to ask")

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse:
        """Refuses: it is to be answered."""
        return self.exec(decoupled)
