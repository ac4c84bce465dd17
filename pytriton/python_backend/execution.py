"""Adapts the ``execute`` of a `TritonPythonModel` to an inference callable."""

from __future__ import annotations

import contextlib
import gc
import inspect
import queue
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.proxy.tensors.batch import BatchRequest
from pytriton.proxy.tensors.failure import RequestError, Rescheduled, failure_of
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.worker.coroutines import WrappingAwaitable
from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.outputs import DeclaredOutputs
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.sender import Respond, Responder, item_of
from pytriton.python_backend.served_request import ServedRequest

_NO_LIST = "Expected a list in the execute return, found {}: return a list with one InferenceResponse for each request"
_UNANSWERED = "the model returned None for a request, and did not use its response sender"
_BOTH = (
    "Expected a None object in the execute return for a rescheduled request, found a response: a request is either "
    "answered or rescheduled"
)
_FAILURES = (Exception, SystemExit)  # a coroutine's failures, without its cancellation
_COLLECT_AFTER_S = 1.0


class ServedModel:
    """A `TritonPythonModel` and its declaration.

    Args:
        instance: The object.
        signature: Its inputs and outputs.
        device: Number of the instance's GPU, or None.
        instance_name: The instance's name in Triton.
    """

    def __init__(self, instance: Any, signature: Signature, device: int | None = None, instance_name: str = "") -> None:
        self._instance = instance
        self.name = signature.model
        self.decoupled = signature.spec.decoupled
        self.output_names = [output.name for output in signature.outputs]
        self.outputs = DeclaredOutputs(self.name, self.output_names)
        self.device = device
        self._instance_name = instance_name or self.name

    @property
    def execute(self) -> Callable[..., Any]:
        """The model's function, which the model may replace at any time."""
        function: Callable[..., Any] = self._instance.execute
        return function

    def requests(self, requests: Sequence[BatchRequest], respond: Respond | None = None) -> list[ServedRequest]:
        """Converts requests for ``execute``; with ``respond``, each has a responder."""
        self.select_device()
        batch = requests[0]._batch
        return [
            ServedRequest(
                batch,
                index,
                None if respond is None else Responder(respond, index, self.outputs, self.decoupled),
                self.output_names,
                self.name,
            )
            for index in range(len(requests))
        ]

    def select_device(self) -> None:
        """Selects the instance's GPU, if it has one, for the calling thread."""
        if self.device is not None:
            select_device(self.device)

    def items(self, returned: Any, requests: list[ServedRequest]) -> list[Any]:
        """Converts the return value of ``execute`` for the worker; None for requests whose response is sent otherwise.

        ``execute`` may return None instead of a list, and send all responses through response senders.

        Raises:
            RequestError: There is not one response for each request.
        """
        if returned is None:
            returned = [None] * len(requests)
        if not isinstance(returned, (list, tuple)):
            raise self.error(_NO_LIST.format(type(returned).__name__))
        if len(returned) != len(requests):
            raise self.error(
                f"execute() returned {len(returned)} responses to {len(requests)} requests: return one for each"
            )
        return [self._item(response, request) for response, request in zip(returned, requests)]

    def await_senders(self, returned: Any, items: list[Any], requests: list[ServedRequest]) -> None:
        """Fails requests without a response once the model has dropped them without using their senders."""
        problem = _NO_LIST.format("NoneType") if returned is None else _UNANSWERED
        for item, request in zip(items, requests):
            if item is None and not request.has_sender:
                request.await_sender(self.error(problem))

    def _item(self, response: Any, request: ServedRequest) -> Any:
        if request.is_rescheduled:
            return Rescheduled() if response is None and not request.has_response else self.error(_BOTH)
        if response is None:
            return None
        if not isinstance(response, InferenceResponse):
            raise self.error(
                f"Expected an InferenceResponse object in the execute return, found {type(response).__name__}: use "
                "pb_utils.InferenceResponse"
            )
        return item_of(response, self.outputs)

    def deferred_items(self, returned: Any, requests: list[ServedRequest]) -> list[Any] | None:
        """Like `items`, if all requests have responders; returns None if these send all responses.

        Raises:
            RequestError: It does not fit the model.
        """
        if self.decoupled:
            self._check_nothing(returned)
            _reschedule(requests)
            return None
        items = self.items(returned, requests)
        if None in items:
            self.await_senders(returned, items, requests)
        for request, item in zip(requests, items):
            if item is not None and request.responder is not None:
                request.responder.close()
        return items

    def _check_nothing(self, returned: object) -> None:
        if returned is not None:
            raise self.error(
                f"model {self.name!r} is decoupled, and its execute() returned {type(returned).__name__}: return None, "
                "and send responses by request.get_response_sender()"
            )

    def error(self, text: str, detail: str = "", name: str = TritonModelException.__name__) -> RequestError:
        """Returns the error of a failed ``execute``, with the same first words as in Triton's Python backend."""
        message = f"Failed to process the request(s) for model '{self._instance_name}', message: {text}"
        return RequestError(TritonError.INTERNAL, message, detail, name)

    def error_of(self, error: BaseException) -> BaseException:
        """Converts an exception from ``execute`` to an error, with the traceback for the server's log."""
        if isinstance(error, (RequestError, PyTritonInvalidRequestError)):
            return error
        failure = failure_of(error, self.name)
        return self.error(failure.message.removeprefix(f"model {self.name!r}: "), failure.detail, failure.error)


class Sequential:
    """``execute`` whose return value has all responses."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def __call__(self, requests: Sequence[BatchRequest]) -> list[Any] | Awaitable[list[Any]]:
        """Calls ``execute`` with a batch; if it returns an awaitable, the worker awaits that on its event loop."""
        served = self._model.requests(requests)
        senders = Senders(self._model, served)
        try:
            returned = self._model.execute(list(served))
            if type(returned) is not list and inspect.isawaitable(returned):
                return WrappingAwaitable(self._await(returned, served, senders), returned)
            items = self._model.items(returned, served)
        except BaseException as error:
            return senders.items_after(self._model.error_of(error), len(served))
        if senders.were_used or None in items:
            self._model.await_senders(returned, items, served)
            unanswered = senders.unanswered(items, served)
            del served  # so that a dropped request is noticed
            senders.complete(items, unanswered)
        return items

    async def _await(self, returned: Awaitable[Any], served: list[ServedRequest], senders: Senders) -> list[Any]:
        import asyncio

        self._model.select_device()
        try:
            result = await returned
            items = self._model.items(result, served)
        except _FAILURES as error:
            return senders.items_after(self._model.error_of(error), len(served))
        if senders.were_used or None in items:
            self._model.await_senders(result, items, served)
            unanswered = senders.unanswered(items, served)
            del served, returned
            await asyncio.get_running_loop().run_in_executor(None, senders.complete, items, unanswered)
        return items


class Senders:
    """Collects the responses that senders send for a batch, one per request.

    Args:
        model: The model.
        requests: The batch; each request gets its responder here when the model requests a sender.
    """

    were_used = False
    """Whether any request has a sender."""

    def __init__(self, model: ServedModel, requests: list[ServedRequest]) -> None:
        self._model = model
        self._sent: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()  # a destructor may put items
        self._responses: dict[int, object] = {}
        for request in requests:
            request.find_responder = self.responder

    def responder(self, index: int) -> Responder:
        """Returns the object that responds to a request."""
        self.were_used = True
        return Responder(self._respond, index, self._model.outputs, False)

    def unanswered(self, items: list[Any], requests: list[ServedRequest]) -> list[int]:
        """Returns the numbers of the requests without a response in the list of items."""
        return [
            index for index, (item, request) in enumerate(zip(items, requests)) if item is None or request.has_response
        ]

    def complete(self, items: list[Any], unanswered: list[int]) -> None:
        """Waits for the senders' responses to these requests, and adds them to the list of items."""
        for index in unanswered:
            items[index] = self._wait(index)

    def items_after(self, error: BaseException, count: int) -> list[Any]:
        """Returns what was sent before ``execute`` failed, and its error for the other requests.

        Raises:
            BaseException: The error, if nothing was sent.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                self._responses.setdefault(*self._sent.get_nowait())
        if not self._responses:
            raise error from None
        return [self._responses.get(index, error) for index in range(count)]

    def _wait(self, index: int) -> object:
        while index not in self._responses:
            try:
                sent = self._sent.get(timeout=_COLLECT_AFTER_S)
            except queue.Empty:
                gc.collect()  # a request in a cycle of references is dropped, and fails
                sent = self._sent.get()
            self._responses.setdefault(*sent)
        return self._responses[index]

    def _respond(self, index: int, item: object, final: bool, later: bool = False) -> None:
        self._sent.put((index, item))


class Deferred:
    """``execute`` that is called for one batch after the other, and whose responses may follow later.

    It may return an awaitable: the next call does not wait for that.
    """

    _pytriton_deferred = True

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def __call__(
        self, requests: Sequence[BatchRequest], respond: Respond
    ) -> list[Any] | Awaitable[list[Any] | None] | None:
        """Calls ``execute`` with a batch; if it returns an awaitable, the worker awaits that on its event loop."""
        served = self._model.requests(requests, respond)
        try:
            returned = self._model.execute(list(served))
            if returned is not None and inspect.isawaitable(returned):
                return WrappingAwaitable(self._await(returned, served), returned)
            return self._model.deferred_items(returned, served)
        except BaseException as error:
            raise self._model.error_of(error) from None

    async def _await(self, returned: Awaitable[Any], served: list[ServedRequest]) -> list[Any] | None:
        self._model.select_device()
        try:
            return self._model.deferred_items(await returned, served)
        except _FAILURES as error:
            raise self._model.error_of(error) from None


class Concurrent:
    """``async execute``, which is called for many batches concurrently."""

    _pytriton_deferred = True

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def __call__(self, requests: Sequence[BatchRequest], respond: Respond) -> list[Any] | None:
        """Calls ``execute`` with a batch; responses may follow later."""
        served = self._model.requests(requests, respond)
        try:
            return self._model.deferred_items(await self._model.execute(list(served)), served)
        except _FAILURES as error:
            raise self._model.error_of(error) from None


def callable_of(model: ServedModel, *, may_use_senders: bool = False) -> Sequential | Deferred | Concurrent:
    """Returns the inference callable of a model.

    Args:
        model: The model.
        may_use_senders: Whether its responses may follow after ``execute`` has returned, or before.

    A function that wraps a coroutine function may return the coroutine, or run it and return its result, which is not
    possible in an event loop.
    """
    if inspect.iscoroutinefunction(model.execute):
        return Concurrent(model)
    wraps_coroutine = inspect.iscoroutinefunction(inspect.unwrap(model.execute))
    return Deferred(model) if model.decoupled or wraps_coroutine or may_use_senders else Sequential(model)


def select_device(device: int) -> None:
    """Selects the default GPU of this thread, if the model uses PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_device(device)


def _reschedule(requests: list[ServedRequest]) -> None:
    for request in requests:
        if request.is_rescheduled and request.responder is not None:
            request.responder.reschedule()
