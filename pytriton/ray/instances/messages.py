"""The messages between the server's process and the actors: batches, and results of their inference callables.

A batch is sent in the format of shared memory, so that requests are the same in the actor as elsewhere.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.tensors.batch import Batch, batch_of
from pytriton.proxy.tensors.failure import RequestError, failure_of
from pytriton.proxy.tensors.outputs import as_responses, checked_outputs, collect_outputs
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.tensors.warmup import WarmupBatch
from pytriton.proxy.transport.arena import Lease
from pytriton.proxy.types import Array, Request, Response
from pytriton.proxy.wire.inference import RequestFailure

_SMALL = 1 << 16  # bytes; above, Ray's zero-copy transfer is faster


class SentBatch(NamedTuple):
    """A batch for an actor.

    Attributes:
        number: Its number, by which `InstanceHost.cancel` refers to it.
        message: The bytes of the batch.
        held: Inputs that are not in the message: those that a warm-up declares.
    """

    number: int
    message: Array
    held: Mapping[str, Array] | None


def sent_batch(number: int, requests: Sequence[Request]) -> SentBatch:
    """Returns the batch of the requests, in the form for an actor."""
    batch = batch_of(requests)
    held = batch.stacked() if isinstance(batch, WarmupBatch) else None
    return SentBatch(number, batch.lease.view(np.ndarray), held)


class ReceivedBatch(WarmupBatch):
    """A batch in an actor: a copy, because inputs may be changed, and data from Ray is read-only."""

    __slots__ = ()

    def __init__(self, sent: SentBatch, signature: Signature) -> None:
        super().__init__(np.array(sent.message).view(Lease), signature)
        if sent.held is not None:
            self.hold({name: np.array(array) for name, array in sent.held.items()})

    def mark_cancelled(self, requests: Sequence[int]) -> None:
        """Marks requests as cancelled, and calls their callbacks."""
        for request in requests:
            self.lease[self._data_offset + request] = 1
            self.cancel(request)

    @property
    def is_wanted(self) -> bool:
        """Whether any request is not cancelled."""
        return not all(self.cancelled())


class Stacked(NamedTuple):
    """The outputs of a whole batch: for each, one array over all requests."""

    outputs: dict[str, Array]
    rows: list[int]


class Failed(NamedTuple):
    """The failure of a whole batch.

    Attributes:
        failure: The message for the client, and the details for the log.
        is_unrecoverable: Whether the server must shut down.
    """

    failure: RequestFailure
    is_unrecoverable: bool = False


class Failure(NamedTuple):
    """The failure of one request of several."""

    failure: RequestFailure


Item = Response | Failure | None
"""The response to one request; None if it has none in this step of a stream."""
Reply = Stacked | Failed | list[Item]
"""The reply of an actor to a batch, or one step of a stream."""


Packed = SentBatch | Reply | bytes
"""A message in the form for Ray."""


def packed(message: SentBatch | Reply) -> Packed:
    """Packs a message for Ray, which transfers bytes faster than arrays, unless these are large."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL) if _size(message) < _SMALL else message


def unpacked(message: Packed) -> Any:
    """Unpacks a message."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def _size(message: SentBatch | Reply) -> int:
    if isinstance(message, SentBatch):
        return message.message.nbytes + sum(array.nbytes for array in (message.held or {}).values())
    if isinstance(message, Failed):
        return 0
    outputs: list[Mapping[str, Array]] = (
        [message.outputs] if isinstance(message, Stacked) else [each for each in message if _is_response(each)]
    )
    return sum(array.nbytes for each in outputs for array in each.values())


def _is_response(item: Item) -> TypeGuard[Response]:
    return isinstance(item, Response)


def failed(error: BaseException, model: str) -> Failed:
    """Returns the reply for an exception that an inference callable raised."""
    return Failed(failure_of(error, model), isinstance(error, PyTritonUnrecoverableError))


def reply_to_batch(returned: object, batch: Batch) -> Reply:
    """Checks the return value of a callable for a batch, and converts it to a reply.

    Raises:
        PyTritonValidationError: An output does not match the declaration.
    """
    signature = batch.signature
    columns, failures, parameters = collect_outputs(returned, batch, signature)
    names = [output.name for output in signature.outputs]
    stacked = {names[column.position]: column.stacked for column in columns if column.stacked is not None}
    if columns and len(stacked) == len(columns):
        return Stacked(stacked, batch.rows)
    responses = [Response({}, parameters=parameters.get(each)) for each in range(batch.request_count)]
    for column in columns:
        for response, array in zip(responses, column.arrays, strict=True):
            if array is not None:
                response[names[column.position]] = array
    items: list[Item] = [*responses]
    for failure in failures:
        items[failure.request] = Failure(failure)
    return items


def reply_to_step(step: object, batch: Batch, *, is_last: bool = False) -> Reply:
    """Checks one step of a stream, and converts it to a reply.

    Args:
        step: A list with an item for each request.
        batch: The batch.
        is_last: Whether the items are the last ones of their requests.

    Raises:
        PyTritonValidationError: An output does not match the declaration.
    """
    items = as_responses(step, batch.request_count)
    return [_item(item, batch, request, is_last) for request, item in enumerate(items)]


def _item(item: object, batch: Batch, request: int, is_last: bool) -> Item:
    if item is None:
        return Response({}, final=True) if is_last else None
    if isinstance(item, BaseException):
        return Failure(failure_of(item, batch.signature.model, request))
    if type(item) is Response and item.final and not item.data:
        return Response({}, final=True)
    names = batch.signature.outputs
    outputs = checked_outputs(item, batch, request, batch.signature)
    final, parameters = (item.final, item.parameters) if type(item) is Response else (False, None)
    named = {names[position].name: array for position, array in outputs.items()}
    return Response(named, final or is_last, parameters)


def received(reply: Reply) -> Any:
    """Converts an actor's reply to the return value of an inference callable in this process.

    Raises:
        RequestError: The batch failed.
        PyTritonUnrecoverableError: The batch failed, and so will all others.
    """
    if isinstance(reply, Failed):
        if reply.is_unrecoverable:
            raise PyTritonUnrecoverableError(reply.failure.message)
        raise _error(reply.failure)
    if isinstance(reply, Stacked):
        return StackedOutputs(reply.outputs, reply.rows)
    return [_error(item.failure) if isinstance(item, Failure) else item for item in reply]


def _error(failure: RequestFailure) -> RequestError:
    return RequestError(failure.code, failure.message, failure.detail, failure.error)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The reply of an actor that has created its inference callable.

    Attributes:
        is_async: Whether it runs in an event loop.
        yields: Whether it yields responses.
    """

    is_async: bool
    yields: bool


@dataclasses.dataclass(frozen=True)
class NotLoaded:
    """The reply of an actor that could not create its inference callable.

    Attributes:
        error: The error, in a line.
        detail: Its traceback.
    """

    error: str
    detail: str
