"""Response senders: respond to a request at any time, from any thread, any number of times."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

from pytriton.proxy.tensors.failure import RequestError, Rescheduled
from pytriton.proxy.types import Response
from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.flags import TRITONSERVER_RESPONSE_COMPLETE_FINAL
from pytriton.python_backend.outputs import DeclaredOutputs
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.tensor import texts_of

Respond = Callable[..., None]
"""Sends a response, an error or the end: request number, item, and whether it is the last. See `is_deferred`."""

_DROPPED = "the model dropped the request's response sender before it had sent the final flag"
_UNABLE = "Unable to send response."  # the prefix of errors in Triton's Python backend, which models may check for
_CLOSED = f"{_UNABLE} Response sender has been closed."


class Responder:
    """Sends the responses to one request. If it is garbage-collected before the final one, the request fails.

    After an error, it only ends then: the client knows already.

    Args:
        respond: Sends an item.
        index: The request's number.
        outputs: The model's outputs.
        decoupled: Whether there may be any number of responses.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_decoupled",
        "_failed",
        "_index",
        "_lock",
        "_outputs",
        "_respond",
        "_responded",
        "error_if_dropped",
    )

    def __init__(self, respond: Respond, index: int, outputs: DeclaredOutputs, decoupled: bool) -> None:
        self._respond = respond
        self._index = index
        self._outputs = outputs
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._closed = False
        self._responded = False
        self._failed = False
        self.error_if_dropped: RequestError | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the final response was sent."""
        return self._closed

    @property
    def has_responded(self) -> bool:
        """Whether a response was sent."""
        return self._responded

    def close(self) -> None:
        """Closes the sender, because the response is sent in another way."""
        self._closed = True

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        """Sends a response; None only ends the request.

        Raises:
            TritonModelException: The final response was sent before, or the model is not decoupled and this is not its
                single response.
        """
        with self._lock:
            self._check(response)
            if response is None and self._responded and not self._decoupled:
                self._closed = True
                return  # its only response was the final one
            self._responded = True
            self._failed = self._failed or (response is not None and response._error is not None)
            last = final or not self._decoupled
            self._closed = final
            try:
                self._respond(self._index, None if response is None else item_of(response, self._outputs), last)
            except Exception as error:  # it cannot be sent: invalid text, or no memory
                self._closed = True
                self._respond(self._index, error, True)
                raise TritonModelException(str(error)) from error

    def _check(self, response: InferenceResponse | None) -> None:
        if self._closed:
            raise TritonModelException(_CLOSED)
        if self._decoupled:
            return
        if response is not None and self._responded:
            raise TritonModelException(
                f"{_UNABLE} Non-decoupled model cannot send more than one response to a request: set "
                "model_transaction_policy { decoupled: true }"
            )
        if response is None and not self._responded:
            raise TritonModelException(
                f"{_UNABLE} Non-decoupled model cannot send complete final before sending a response: send the response"
            )

    def reschedule(self) -> None:
        """Returns the request to the server, which schedules it again.

        Raises:
            TritonModelException: The final response was sent before.
        """
        with self._lock:
            if self._closed:
                raise TritonModelException(_CLOSED)
            self._closed = True
            self._respond(self._index, Rescheduled(), True)

    def __del__(self) -> None:
        if not self._closed and (self._decoupled or not self._responded):
            error = self.error_if_dropped or RequestError(TritonError.INTERNAL, _DROPPED)
            self._respond(self._index, None if self._failed else error, True, later=True)


class InferenceResponseSender:
    """Sends the responses to a request. May be used after ``execute`` has returned, from any thread."""

    __slots__ = ("_is_cancelled", "_responder")

    def __init__(self, responder: Responder, is_cancelled: Callable[[], bool]) -> None:
        self._responder = responder
        self._is_cancelled = is_cancelled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response.

        Args:
            response: May be omitted with the final flag. Its arrays may be changed as soon as this returns.
            flags: ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` with the last response, or after it.

        Raises:
            TritonModelException: The final flag was sent before, the flags are invalid, or there is nothing to send.
            TypeError: An argument is of another type.
        """
        if type(flags) is not int or not 0 <= flags <= TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            flags = _checked_flags(flags)
        if response is None and not flags:
            raise TritonModelException(f"{_UNABLE} There is neither a response nor the final flag: pass one of them")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() has a response of type {type(response).__name__}: use pb_utils.InferenceResponse")
        self._responder.respond(response, bool(flags))

    def is_cancelled(self) -> bool:
        """Returns whether the client has cancelled or disconnected, or the timeout has passed."""
        return self._is_cancelled()


def _checked_flags(flags: Any) -> int:
    if not hasattr(flags, "__index__"):
        raise TypeError(f"send() has flags={flags!r}, of type {type(flags).__name__}: use a number")
    number = operator.index(flags)
    if number not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
        raise TritonModelException(
            f"{_UNABLE} Unsupported flags {number}: use 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL"
        )
    return number


def item_of(response: InferenceResponse, outputs: DeclaredOutputs) -> Any:
    """Converts a response to a dictionary, a `Response` or an exception, for the worker."""
    error = response._error
    if error is not None:
        return RequestError(error.code(), error.message())
    tensors, names = response._tensors, outputs.names
    arrays = {tensor._name: texts_of(tensor._array) for tensor in tensors if tensor._name in names}
    if len(arrays) < len(tensors):
        outputs.warn_of_others(tensor._name for tensor in tensors)
    return Response(arrays, parameters=response._parameters) if response._parameters else arrays
