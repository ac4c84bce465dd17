"""The requests that ``execute`` receives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.failure import RequestError
from pytriton.proxy.wire.inference import RequestMetadata
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.flags import TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from pytriton.python_backend.request import InferenceRequest
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.sender import InferenceResponseSender, Responder
from pytriton.python_backend.tensor import Tensor, unchecked
from pytriton.python_backend.trace import InferenceTrace

_CREATION = threading.Lock()  # of responders, by several threads
_RELEASE_FLAGS = (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


class ServedRequest(InferenceRequest):
    """A request that ``execute`` receives; it looks up its contents on first access.

    Args:
        batch: The batch of the request.
        index: The request's number in the batch.
        responder: Responds to the request.
        output_names: Names of the model's outputs.
        model_name: The model's name.
    """

    __slots__ = (
        "_all_outputs",
        "_batch",
        "_index",
        "_own_flags",
        "_tensors",
        "find_responder",
        "has_sender",
        "is_rescheduled",
        "responder",
    )

    def __init__(
        self, batch: Batch, index: int, responder: Responder | None, output_names: list[str], model_name: str
    ) -> None:
        self._batch = batch
        self._index = index
        self._all_outputs = output_names
        self._model_name = model_name
        self._tensors: list[Tensor] | None = None
        self._own_flags: int | None = None
        self.find_responder: Callable[[int], Responder] | None = None
        self.responder = responder
        self.has_sender = False
        self.is_rescheduled = False

    @property
    def has_response(self) -> bool:
        """Whether a response was sent by a response sender."""
        return self.responder is not None and self.responder.has_responded

    @property
    def _metadata(self) -> RequestMetadata:
        return self._batch.metadata(self._index)

    def inputs(self) -> list[Tensor]:
        """See `InferenceRequest.inputs`."""
        if self._tensors is None:
            inputs = self._batch.inputs_of(self._index)
            self._tensors = [unchecked(name, array) for name, array in inputs.items()]
        return list(self._tensors)

    def requested_output_names(self) -> set[str]:
        """See `InferenceRequest.requested_output_names`."""
        positions = self._batch.requested_outputs(self._index)
        return set(self._all_outputs) if positions is None else {self._all_outputs[each] for each in positions}

    def request_id(self) -> str:
        """See `InferenceRequest.request_id`."""
        return self._metadata.id

    def correlation_id(self) -> int | str:
        """See `InferenceRequest.correlation_id`."""
        return self._metadata.options.correlation_id

    def flags(self) -> int:
        """See `InferenceRequest.flags`."""
        return self._metadata.options.flags if self._own_flags is None else self._own_flags

    def set_flags(self, flags: int) -> None:
        """See `InferenceRequest.set_flags`."""
        self._own_flags = flags

    def timeout(self) -> int:
        """See `InferenceRequest.timeout`."""
        return self._metadata.options.timeout_us

    def priority(self) -> int:
        """Returns the priority: 1 is the highest, 0 is the model's default."""
        return self._metadata.options.priority

    def parameters(self) -> str:
        """See `InferenceRequest.parameters`."""
        return json.dumps(self._metadata.parameters)

    def trace(self) -> InferenceTrace:
        """See `InferenceRequest.trace`."""
        options = self._metadata.options
        return InferenceTrace(options.trace, options.trace_context)

    def is_cancelled(self) -> bool:
        """See `InferenceRequest.is_cancelled`."""
        return self._batch.is_cancelled(self._index)

    def get_response_sender(self) -> InferenceResponseSender:
        """See `InferenceRequest.get_response_sender`."""
        responder = self._responder()
        if responder is None:
            raise TritonModelException("the response to this request was sent when execute() returned")
        self.has_sender = True
        responder.error_if_dropped = None
        return InferenceResponseSender(responder, self.is_cancelled)

    def await_sender(self, error: RequestError) -> None:
        """Fails the request with this error if the model drops it, and never gets its response sender."""
        responder = self._responder()
        if responder is not None:
            responder.error_if_dropped = error

    def _responder(self) -> Responder | None:
        if self.responder is None and self.find_responder is not None:
            with _CREATION:
                if self.responder is None:
                    self.responder = self.find_responder(self._index)
        return self.responder

    def set_release_flags(self, flags: int) -> None:
        """See `InferenceRequest.set_release_flags`."""
        if flags not in _RELEASE_FLAGS:
            raise TritonModelException(
                f"set_release_flags() has {flags!r}: use TRITONSERVER_REQUEST_RELEASE_ALL or …_RELEASE_RESCHEDULE"
            )
        self.is_rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """Raises an error: a request from the server cannot be sent."""
        raise TritonModelException("a request that execute() received cannot be sent: create an InferenceRequest")

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse:
        """Raises an error: a request from the server cannot be sent."""
        return self.exec(decoupled)
