"""The worker's client of the server: inference by other models, logging, metrics, model control.

Each model instance has its own service channel in addition to the channel for its batches: a socket, and an arena for
each direction. `current_client` returns the client of the call in progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError, PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.model_config.datatypes import BYTES_CODE, CODE_BY_DTYPE
from pytriton.proxy.services.dispatcher import ReplyDispatcher
from pytriton.proxy.services.messages import InferenceCall, InferenceReply, ServiceTensor, write_call
from pytriton.proxy.services.pending_call import PendingCall
from pytriton.proxy.services.reply_stream import AsyncReplyStream, ReplyStream
from pytriton.proxy.telemetry.propagation import start_request_span
from pytriton.proxy.tensors.bytes_tensor import BytesElementError, as_bytes, encode_elements
from pytriton.proxy.tensors.gpu_tensor import as_gpu_tensor, is_on_gpu
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import float_of
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.service import (
    NO_BATCH,
    ON_DEVICE,
    InferenceCallInput,
    LogLevel,
    MetricKind,
    MetricMessage,
    MetricOperation,
    MetricUpdate,
    ModelMessage,
    ModelOperation,
    ServiceNotification,
    encode_log,
    encode_metric,
    encode_model,
)

if TYPE_CHECKING:
    import asyncio

SERVICE_FD = 4
"""The file descriptor of a worker process's service channel, if it has one."""

_RAW_CODE = 2  # the code of bytes that are already in Triton's layout
_FOR_SEVERAL = "stream() or astream()"


Caller = tuple["ServerClient | None", int]
"""The client of the instance whose callable is running, and the sequence of the batch, or ``CURRENT_BATCH``."""

CURRENT_CALLER: ContextVar[Caller] = ContextVar("pytriton_caller", default=(None, NO_BATCH))
"""The caller, while a worker runs its inference callable."""

_open: weakref.WeakSet[ServerClient] = weakref.WeakSet()
_process_client: ServerClient | None = None


def use_process_channel(fd: int) -> None:
    """Uses a socket as the service channel of this process, which serves one model instance."""
    global _process_client
    _process_client = ServerClient(fd)


def process_client() -> ServerClient | None:
    """Returns the client that the process has had since it started, or None."""
    return _process_client


def current_client() -> ServerClient:
    """Returns the client of the call in progress, or else of the only model instance that this process serves.

    Raises:
        PyTritonInvalidOperationError: No call is in progress, and there is not exactly one instance.
    """
    services, _ = CURRENT_CALLER.get()
    if services is not None:
        return services
    candidates = list(_open)
    if len(candidates) != 1:
        raise PyTritonInvalidOperationError(
            "The server is reachable only from within a call: bind the function with Triton.bind and send it "
            "a request. In threads of your own, use the Triton context that the function was called with."
        )
    return candidates[0]


class ServerClient:
    """The worker's end of a model instance's service channel.

    Safe to use from any threads and event loops at the same time. Nothing is sent before the first use.

    Args:
        fd: The socket, which the client then owns.
        of_instance: Whether it belongs to a model instance: then it may be used outside of calls, too.
    """

    def __init__(self, fd: int, *, of_instance: bool = True) -> None:
        self._dispatcher = ReplyDispatcher(socket.socket(fileno=fd))
        if of_instance:
            _open.add(self)

    @property
    def closed(self) -> bool:
        """Whether the channel is known to be closed."""
        return self._dispatcher.closed

    def infer(self, call: InferenceCall, timeout_s: float | None = None) -> InferenceReply:
        """Sends a request to a model and waits for its only response.

        Args:
            call: The request. Inputs are copied into shared memory once, where the model reads them.
            timeout_s: How long to wait. After that the request is cancelled, and the reply has an error.

        Returns:
            The response. Its ``error`` holds errors of the server, such as an unknown model, and that a decoupled model
            sent no response or several.

        Raises:
            PyTritonInvalidOperationError: The server has exited, or this is a fork of the process that had the channel.
            PyTritonBadParameterError: An input is not an array, or has a dtype that Triton lacks.
            ArenaError: There is no room for the inputs.
        """
        return only_reply(self.stream(call, timeout_s), call)

    async def ainfer(self, call: InferenceCall, timeout_s: float | None = None) -> InferenceReply:
        """`infer` for event loops. Cancelling the task cancels the request."""
        return await only_reply_async(self.astream(call, timeout_s), call)

    def stream(self, call: InferenceCall, timeout_s: float | None = None, *, with_end: bool = False) -> ReplyStream:
        """Sends a request to a model, decoupled or not, and iterates over the responses as they arrive.

        Args:
            call: As in `infer`.
            timeout_s: How long to wait for each response.
            with_end: Whether a final response without outputs is yielded, too.

        Raises:
            PyTritonInvalidOperationError: As in `infer`.
            PyTritonBadParameterError: As in `infer`.
            ArenaError: As in `infer`.
        """
        return ReplyStream(self._dispatcher, self._call(call, None), call, timeout_s, with_end)

    def astream(
        self, call: InferenceCall, timeout_s: float | None = None, *, with_end: bool = False
    ) -> AsyncReplyStream:
        """`stream` for ``async for``, in the running event loop."""
        import asyncio

        pending = self._call(call, asyncio.get_running_loop())
        return AsyncReplyStream(self._dispatcher, pending, call, timeout_s, with_end)

    def log(self, level: LogLevel, message: str, file: str = "pytriton", line: int = 0) -> None:
        """Writes a line to the server's log without waiting."""
        self._dispatcher.submit(
            ServiceNotification.LOG, encode_log(level, message, file, line).to_bytes(), Layout(), replies=False
        )

    def load_model(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model.

        Args:
            name: The model's name.
            config: The configuration as JSON, instead of the repository's.
            files: The contents of the model's folder by relative path (``"1/model.py"``), instead of the repository's.

        Raises:
            PyTritonInferenceError: The server could not load the model.
        """
        layout = Layout()
        laid_out = []
        for path, content in (files or {}).items():
            tensor = layout.add([np.frombuffer(content, np.uint8)], (len(content),), _RAW_CODE)
            laid_out.append((path, tensor.offset, tensor.size))
        self._model(ModelMessage(ModelOperation.LOAD, name, config=config, files=laid_out), layout)

    def unload_model(self, name: str, dependents: bool = False) -> None:
        """Unloads a model, and with ``dependents`` the models that it is composed of.

        Raises:
            PyTritonInferenceError: The server could not unload it.
        """
        self._model(ModelMessage(ModelOperation.UNLOAD_WITH_DEPENDENTS if dependents else ModelOperation.UNLOAD, name))

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Returns whether a model is ready; version -1 lets Triton choose.

        Raises:
            PyTritonInferenceError: The server reported an error.
        """
        return bool(self._model(ModelMessage(ModelOperation.IS_READY, name, version)))

    def metric_family(self, name: str, description: str, kind: MetricKind) -> int:
        """Creates a family of metrics, or returns the same family of another instance.

        Returns:
            Its number, for `metric` and `delete_metric_family`.

        Raises:
            PyTritonInferenceError: The server could not create it, or has a family of another kind.
        """
        line = description.replace("\\", r"\\").replace("\n", r"\n")  # the server writes it as it is
        return self._metric(MetricMessage(MetricOperation.FAMILY, kind=kind, name=name, description=line))

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None = None) -> int:
        """Creates a metric, or returns the one with the same labels.

        Args:
            family: The number of its family.
            labels: Labels by name.
            buckets: The ascending upper bounds of a histogram.

        Returns:
            Its number, for the methods below.

        Raises:
            PyTritonInferenceError: The server could not create it.
        """
        return self._metric(MetricMessage(MetricOperation.METRIC, family, labels=labels, buckets=buckets or ()))

    def increment(self, metric: int, value: float) -> None:
        """Adds to a counter or a gauge.

        Raises:
            PyTritonInferenceError: The counter would decrease, or the metric is a histogram.
        """
        self._metric(MetricMessage(MetricOperation.INCREMENT, metric, value=value))

    def set(self, metric: int, value: float) -> None:
        """Sets a gauge.

        Raises:
            PyTritonInferenceError: The metric is not a gauge.
        """
        self._metric(MetricMessage(MetricOperation.SET, metric, value=value))

    def observe(self, metric: int, value: float) -> None:
        """Adds an observation to a histogram.

        Raises:
            PyTritonInferenceError: The metric is not a histogram.
        """
        self._metric(MetricMessage(MetricOperation.OBSERVE, metric, value=value))

    def value(self, metric: int) -> float:
        """Returns the value of a counter or a gauge.

        Raises:
            PyTritonInferenceError: The metric is a histogram.
        """
        return float_of(self._metric(MetricMessage(MetricOperation.VALUE, metric)))

    def update_metrics(self, updates: Sequence[MetricUpdate]) -> None:
        """Changes many metrics in one message. Does not wait.

        Raises:
            PyTritonInvalidOperationError: The server has exited.
        """
        message = MetricMessage(MetricOperation.UPDATE, updates=updates)
        head = encode_metric(message).to_bytes()
        self._dispatcher.submit(ServiceNotification.METRIC, head, Layout(), replies=False)

    def delete_metric(self, metric: int) -> None:
        """Releases a metric, which is deleted with its last user. Does not wait, and does not fail."""
        self._tell(MetricMessage(MetricOperation.DELETE, metric))

    def delete_metric_family(self, family: int) -> None:
        """Releases a family, which its metrics keep alive. Does not wait, and does not fail."""
        self._tell(MetricMessage(MetricOperation.DELETE_FAMILY, family))

    def trim(self, before: float) -> bool:
        """Returns memory to the system if it has been free since ``before``, a ``time.monotonic()``.

        Returns:
            Whether there is nothing left to do until the next call.
        """
        return self._dispatcher.trim(before)

    def in_use(self) -> int:
        """Returns the number of blocks of shared memory that the server has not released yet."""
        return self._dispatcher.in_use()

    def close(self) -> None:
        """Closes the channel: pending calls are cancelled, and fail."""
        _open.discard(self)
        self._dispatcher.close()

    def _call(self, call: InferenceCall, loop: asyncio.AbstractEventLoop | None) -> PendingCall:
        if not isinstance(call.inputs, Mapping):
            raise PyTritonBadParameterError(
                f"the inputs of a request to model {call.model!r} are of type {type(call.inputs).__name__}: use a "
                "dictionary of arrays by input name"
            )
        for name in call.inputs:
            if not isinstance(name, str):
                raise PyTritonBadParameterError(
                    f"a request to model {call.model!r} has an input of the name {name!r}: names are strings"
                )
        batch = call.batch
        if batch is None:
            services, sequence = CURRENT_CALLER.get()
            batch = sequence if services is self else NO_BATCH
        are_on_gpu = any(type(value) is not np.ndarray and is_on_gpu(value) for value in call.inputs.values())
        layout = Layout(self._dispatcher.devices() if are_on_gpu else None)
        inputs = [_lay_out(name, value, layout) for name, value in call.inputs.items()]
        for key, value in call.parameters.items():
            if not isinstance(value, (str, bool, int, float)):
                raise PyTritonBadParameterError(
                    f"parameter {key!r} of a request to model {call.model!r} is {value!r}: use str, bool, int or float"
                )
        try:
            # A request of an untraced one is not traced either; `rate=1000` would trace all of them otherwise.
            span = start_request_span(call.model, {}, call.trace_context, may_begin=batch == NO_BATCH)
            if span is not None:
                call = dataclasses.replace(call, trace_context=span.trace_context)
            head = write_call(call, inputs, batch)
            return self._dispatcher.submit(ServiceNotification.INFER, head, layout, loop=loop, span=span)
        except struct.error as error:
            raise PyTritonBadParameterError(
                f"a number of a request to model {call.model!r} does not fit 64 bits: {error}"
            ) from error

    def _model(self, message: ModelMessage, layout: Layout | None = None) -> int:
        return self._result(ServiceNotification.MODEL, encode_model(message).to_bytes(), layout or Layout())

    def _metric(self, message: MetricMessage) -> int:
        return self._result(ServiceNotification.METRIC, encode_metric(message).to_bytes(), Layout())

    def _tell(self, message: MetricMessage) -> None:
        with contextlib.suppress(PyTritonInvalidOperationError):
            self._dispatcher.submit(
                ServiceNotification.METRIC, encode_metric(message).to_bytes(), Layout(), replies=False
            )

    def _result(self, kind: ServiceNotification, head: bytes, layout: Layout) -> int:
        result = self._dispatcher.wait(self._dispatcher.submit(kind, head, layout), None)
        if isinstance(result, InferenceReply):
            result.check()
            raise PyTritonInferenceError("the server replied with nothing", ErrorCode.INTERNAL)
        assert result is not None
        return result


def only_reply(stream: ReplyStream, call: InferenceCall, for_several: str = _FOR_SEVERAL) -> InferenceReply:
    """Waits for the only response of a stream; see `ServerClient.infer`.

    If there are several, the error recommends ``for_several``.
    """
    try:
        first = next(stream, None)
        if first is not None and first.final:
            return first
        second = next(stream, None)
    finally:
        stream.cancel()
    return _only_reply([reply for reply in (first, second) if reply is not None], call, for_several)


async def only_reply_async(
    stream: AsyncReplyStream, call: InferenceCall, for_several: str = _FOR_SEVERAL
) -> InferenceReply:
    """Waits for the only response of a stream, in the running event loop."""
    replies: list[InferenceReply] = []
    try:
        while len(replies) < 2 and (reply := await stream.next()) is not None:
            if reply.final and not replies:
                return reply
            replies.append(reply)
            if reply.final:
                break
    finally:
        stream.cancel()
    return _only_reply(replies, call, for_several)


def _only_reply(replies: list[InferenceReply], call: InferenceCall, for_several: str) -> InferenceReply:
    if len(replies) == 1:
        return replies[0]
    if replies and replies[1].error is not None:
        return replies[1]
    found = f"several responses: use {for_several}" if replies else "no response"
    message = f"model {call.model!r} is decoupled, and sent {found}"
    return InferenceReply(error=PyTritonInferenceError(message, ErrorCode.UNSUPPORTED))


def _lay_out(name: str, value: Array | ServiceTensor, layout: Layout) -> InferenceCallInput:
    if type(value) is not np.ndarray and is_on_gpu(value):
        tensor = as_gpu_tensor(value, keeps_bfloat16=True)
        code = CODE_BY_DTYPE[tensor.dtype]
        location = layout.add_on_device([tensor], tensor.shape)
        if location is not None:
            return InferenceCallInput(name, code | ON_DEVICE, location)
        value = tensor.numpy()
    if isinstance(value, ServiceTensor):
        return InferenceCallInput(name, value.datatype, layout.add([value.data], tuple(value.shape), _RAW_CODE))
    if not isinstance(value, np.ndarray):
        raise PyTritonBadParameterError(
            f"input {name!r} is a {type(value).__name__}, not a NumPy array: convert it with np.asarray"
        )
    code = CODE_BY_DTYPE[value.dtype]
    array = _serialized(name, value) if code == BYTES_CODE else value
    return InferenceCallInput(name, code, layout.add([array], value.shape or (1,), _RAW_CODE))


def _serialized(name: str, array: Array) -> Array:
    """Encodes an array of bytes or strings in Triton's layout: each element after its length."""
    try:
        elements = as_bytes(array)
    except BytesElementError as error:
        raise PyTritonBadParameterError(f"input {name!r} {error}") from error.__cause__
    return np.frombuffer(encode_elements(elements.ravel().tolist()), np.uint8)
