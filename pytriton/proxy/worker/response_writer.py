"""Writes the responses of a concurrent executor into shared memory, and sends them."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.proxy.tensors.bytes_tensor import BytesElementError, as_bytes
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.tensors.outputs import checked_outputs, code_of, parameters_of
from pytriton.proxy.tensors.result import ResultWriter
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Arena, ArenaError
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.forks import FORKS, exit_fork
from pytriton.proxy.types import Array, Response
from pytriton.proxy.wire.encoding import ParameterValue
from pytriton.proxy.wire.inference import (
    RequestFailure,
    ResponseEntry,
    ResponseOutput,
    ResponsesMessage,
    encode_responses,
)
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.combining_lock import CombiningLock
from pytriton.proxy.worker.in_flight import InFlightBatch

if TYPE_CHECKING:
    import asyncio


_SMALL = 4096  # bytes of an array; smaller ones are copied rather than waited for


class PendingResponse(NamedTuple):
    """A response to write to shared memory; without arrays and failure, it only ends the request."""

    in_flight: InFlightBatch
    request: int
    final: bool
    end_ns: int
    failure: RequestFailure | None = None
    outputs: dict[int, Array] | None = None
    parameters: dict[str, ParameterValue] | None = None


def response_of(
    in_flight: InFlightBatch, request: int, item: object, final: bool, now_ns: int, signature: Signature
) -> PendingResponse:
    """Converts an item that an inference callable returned, yielded or raised to a response.

    Args:
        in_flight: The batch.
        request: The index of the request in it.
        item: A `Response`, a dictionary of arrays, or an exception.
        final: Whether it ends the request.
        now_ns: The ``time.monotonic_ns()`` of the item.
        signature: The model's declaration.

    Raises:
        PyTritonValidationError: An output does not match the declaration, or a parameter cannot be sent.
    """
    if isinstance(item, BaseException):
        if in_flight.batch.spans is not None:
            in_flight.batch.spans.fail_request(request, item)
        return PendingResponse(in_flight, request, final, now_ns, failure_of(item, signature.model, request))
    outputs = checked_outputs(item, in_flight.batch, request, signature)
    for position, array in outputs.items():
        if code_of(array, position, signature) == BYTES_CODE:
            try:
                outputs[position] = as_bytes(array)
            except BytesElementError as error:
                raise error.of(f"output {signature.outputs[position].name!r}") from error.__cause__
        elif isinstance(array, GpuTensor):  # it may be copied later, by another thread
            outputs[position] = array.numpy()
    return PendingResponse(in_flight, request, final, now_ns, None, outputs, parameters_of(item))


def is_end(item: object) -> bool:
    """Returns whether an item ends its request without data."""
    return type(item) is Response and item.final and not item.data


class ResponseWriter:
    """Sends the responses of a concurrent executor. Safe to use from any thread.

    Args:
        channel: The connection.
        arena: The arena for the responses.
        signature: The model's declaration.
        loop: The loop in which responses are collected, to send them together.
        deferred: Whether several threads may respond to a request; the first one to end it wins.
    """

    def __init__(
        self, channel: Channel, arena: Arena, signature: Signature, loop: asyncio.AbstractEventLoop, deferred: bool
    ) -> None:
        self._channel = channel
        self._arena = arena
        self._signature = signature
        self._loop = loop
        self._deferred = deferred
        self._forks = FORKS.count
        self._lock: CombiningLock[list[PendingResponse]] = CombiningLock(self._take_left)
        # It guards the arena and all attributes below.
        self._replies: list[PendingResponse] = []
        self._result_writer = ResultWriter(signature)
        self._results: list[Notification] = []  # already written
        self._pending_errors: list[PendingResponse] = []  # errors that replace outputs that did not fit
        self._flush_is_due = False
        self._closed = False
        self._loop_thread = 0

    @property
    def are_due(self) -> bool:
        """Whether there are errors that could not be sent yet."""
        return bool(self._pending_errors)

    def open(self) -> None:
        """Marks the calling thread as the loop's."""
        self._loop_thread = threading.get_ident()

    def close(self) -> None:
        """Stops sending."""
        with self._lock:
            self._closed = True

    def send(self, responses: list[PendingResponse], at_once: bool = False) -> None:
        """Sends responses, by default together with others from the same iteration of the loop or other threads."""
        if FORKS.count != self._forks:
            exit_fork(self._signature.model)
        in_loop = threading.get_ident() == self._loop_thread
        if not at_once and not in_loop and not self._deferred and all(map(_is_small, responses)):
            _mark_ended(responses)
            if not self._lock.enter_if_free():
                # The callable may change its arrays as soon as this returns.
                self._lock.leave([_copied(response) for response in responses])
                return
            try:
                self._replies += responses
                self._flush()
            finally:
                self._lock.__exit__()
            return
        with self._lock:
            if self._deferred:  # another thread may have ended a request
                responses = [response for response in responses if response.request not in response.in_flight.ended]
            _mark_ended(responses)
            self._replies += responses
            if at_once or not in_loop:
                self._flush()
            else:
                self._flush_soon()

    def send_result(self, in_flight: InFlightBatch, returned: object, end_ns: int) -> bool:
        """Sends all responses to a batch as one result, together with others from the same iteration of the loop.

        Args:
            in_flight: The batch.
            returned: The return value of the inference callable; see `collect_outputs`.
            end_ns: When it returned (CLOCK_MONOTONIC).

        Returns:
            Whether it was sent; False if a request has had a response before.

        Raises:
            PyTritonValidationError: An output does not match the declaration.
            ArenaError: The arena is full.
        """
        if FORKS.count != self._forks:
            exit_fork(self._signature.model)
        with self._lock:
            if in_flight.ended:
                return False
            place = self._result_writer.write(returned, in_flight.batch, (in_flight.start_ns, end_ns), self._arena)
            self._results.append(Notification(NotificationKind.RESULT, in_flight.sequence, *place))
            in_flight.ended.update(range(in_flight.batch.request_count))
            in_flight.unwanted |= in_flight.ended
            self._flush_soon()
            return True

    def mark_returned(self, in_flight: InFlightBatch, notify: bool) -> None:
        """Marks that the callable has returned while requests may be open; ``notify`` notifies the server."""
        with self._lock:
            in_flight.has_returned = True
            if notify and not in_flight.has_ended:
                self._notify_returned(in_flight)

    def notify_returned(self, in_flight: InFlightBatch) -> None:
        """Notifies the server that the callable accepts the next batch, while its awaitable continues."""
        with self._lock:
            self._notify_returned(in_flight)

    def _notify_returned(self, in_flight: InFlightBatch) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):  # the instance has disconnected, which the loop will notice
                self._channel.send(Notification(NotificationKind.RETURNED, in_flight.sequence, 0, 0))

    def retry(self) -> None:
        """Sends errors that did not fit before, if there is room now."""
        if self._pending_errors:
            with self._lock:
                self._flush()

    def trim(self, before: float) -> None:
        """Returns memory to the system if it has been free since ``before``, a ``time.monotonic()``."""
        with self._lock:
            self._arena.trim(before)

    def _take_left(self, left: list[list[PendingResponse]]) -> None:
        for responses in left:
            self._replies += responses
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        with self._lock:
            self._flush_is_due = False
            self._flush()

    def _flush(self) -> None:
        # A response that could not be sent was replaced by an error, which is final.
        responses = [response for response in self._replies if response.request not in response.in_flight.unsendable]
        self._replies = []
        results, self._results = self._results, []
        if self._closed:
            return
        try:
            if results:
                self._channel.send_several(results)
            if responses:
                self._write(responses)
        except OSError:
            pass  # the instance has disconnected, which the loop will notice
        except Exception:  # mostly ArenaError: one that cannot be written must not take the others with it
            for response in responses:
                self._write_alone(response)
        while self._pending_errors:
            try:
                self._write(self._pending_errors[:1])
            except (ArenaError, OSError):
                return  # retried by the next poll for cancelled requests
            del self._pending_errors[0]

    def _write(self, responses: list[PendingResponse]) -> None:
        layout = Layout()
        entries = []
        for in_flight, request, final, end_ns, failure, arrays, parameters in responses:
            laid_out = []
            for position, array in (arrays or {}).items():
                code = code_of(array, position, self._signature)
                laid_out.append(ResponseOutput(position, code, layout.add([array], array.shape, code)))
            response, times = arrays is not None, (in_flight.start_ns, end_ns)
            entries.append(
                ResponseEntry(in_flight.sequence, request, final, response, *times, failure, laid_out, parameters or {})
            )
        offset, size = layout.write(encode_responses(ResponsesMessage(entries)).to_bytes(), self._arena)
        self._channel.send(Notification(NotificationKind.RESPONSES, 0, offset, size))

    def _write_alone(self, response: PendingResponse) -> None:
        """Sends a single response, because several could not be sent; sends an error if it cannot be, either."""
        in_flight, request = response.in_flight, response.request
        if request in in_flight.unsendable:
            return
        try:
            self._write([response])
        except OSError:
            pass
        except Exception as error:
            in_flight.unsendable.add(request)
            in_flight.ended.add(request)
            in_flight.unwanted.add(request)
            failure = failure_of(error, self._signature.model, request)
            self._pending_errors.append(PendingResponse(in_flight, request, True, response.end_ns, failure))


def _mark_ended(responses: list[PendingResponse]) -> None:
    for response in responses:
        spans = response.in_flight.batch.spans
        if spans is not None:
            spans.responded(response.request, response.outputs is not None, response.final)
        if response.final:
            response.in_flight.ended.add(response.request)
            response.in_flight.unwanted.add(response.request)


def _is_small(response: PendingResponse) -> bool:
    return all(array.nbytes <= _SMALL for array in (response.outputs or {}).values())


def _copied(response: PendingResponse) -> PendingResponse:
    if not response.outputs:
        return response
    return response._replace(outputs={position: array.copy() for position, array in response.outputs.items()})
