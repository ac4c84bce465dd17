"""A batch: requests in shared memory, in the form that an inference callable receives."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from typing import Any, cast

import numpy as np

from pytriton.exceptions import PyTritonArrayError, PyTritonValidationError
from pytriton.model_config.datatypes import BYTES_CODE, DTYPE_BY_CODE
from pytriton.proxy.telemetry.spans import BatchSpans, start_spans
from pytriton.proxy.tensors.bytes_tensor import bytes_array
from pytriton.proxy.tensors.gpu_tensor import GpuTensor, peer_tensor
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Lease
from pytriton.proxy.types import Array, Request
from pytriton.proxy.wire.encoding import ProtocolError, TensorColumn
from pytriton.proxy.wire.inference import RequestMetadata, read_batch, read_metadata

LOGGER = logging.getLogger(__name__)

_NO_DETAILS = RequestMetadata()
_OF_DETAILS = frozenset({"parameters", "request_id", "requested_output_names"})


class Batch:
    """The requests of a batch in shared memory. Arrays are created on first access, without a copy."""

    __slots__ = (
        "_callbacks",
        "_columns",
        "_data_offset",
        "_message",
        "_metadata_read",
        "_metadata_start",
        "_signature",
        "_stacked",
        "_starts",
        "lease",
        "request_count",
        "rows",
        "spans",
    )

    def __init__(self, lease: Lease, signature: Signature) -> None:
        """Reads the message at the start of ``lease``."""
        self._message, self._data_offset, self._metadata_start = read_batch(lease)
        self.lease = lease
        """The block that holds the batch."""
        self.request_count = self._message.request_count
        """Number of requests."""
        if self.request_count > lease.nbytes - self._data_offset:  # there is a cancel flag for each
            raise ProtocolError(f"a batch cannot have {self.request_count} requests")
        self.rows = self._message.rows
        """First dimension of each request; empty if the model does not batch."""
        self._metadata_read: list[RequestMetadata] | None = None if self._metadata_start else []
        self._signature = signature
        self._stacked: dict[str, Array] | None = None
        self._columns: dict[int, Array] | None = None
        self._starts: list[int] | None = None
        self._callbacks: dict[int, list[Callable[[], None]]] | None = None
        self.spans: BatchSpans | None = None
        """The spans of the requests, if some are traced."""
        if self._message.is_traced:
            self._start_spans()

    @property
    def wants_gpu(self) -> bool:
        """Whether a request prefers an output in the memory of a GPU."""
        return self._message.wants_gpu

    @property
    def signature(self) -> Signature:
        """The model's declaration."""
        return self._signature

    def cancelled(self) -> bytes:
        """Returns the cancel flags: a byte for each request, 1 once it is cancelled."""
        return self.lease[self._data_offset : self._data_offset + self.request_count].tobytes()

    def is_cancelled(self, request: int) -> bool:
        """Returns whether a request has been cancelled."""
        return bool(self.lease[self._data_offset + request])

    def on_cancel(self, request: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Registers a callback for a request's cancellation; returns a function that unregisters it."""
        if self._callbacks is None:
            self._callbacks = {}
        callbacks = self._callbacks.setdefault(request, [])
        callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                callbacks.remove(callback)

        if self.is_cancelled(request):
            self.cancel(request)
        return remove

    def cancel(self, request: int) -> None:
        """Calls the callbacks registered for a request's cancellation, each once."""
        callbacks = (self._callbacks or {}).get(request, [])
        while callbacks:
            try:
                callback = callbacks.pop()
            except IndexError:  # another thread has taken it
                return
            try:
                callback()
            except Exception:  # the other callbacks must be called, too
                LOGGER.exception("A cancellation callback of model %r failed.", self._signature.model)

    def requests(self) -> list[Request]:
        """Returns the requests, which look up their contents on first access."""
        requests: list[Request] = [BatchRequest(self, index) for index in range(self.request_count)]
        if self.spans is not None:
            for request, span in zip(requests, self.spans.requests):
                request.span = span
        return requests

    def metadata(self, request: int) -> RequestMetadata:
        """Returns the metadata of a request: id, parameters and options."""
        metadata = self._all_metadata()
        return metadata[request] if metadata else _NO_DETAILS

    def requested_outputs(self, request: int) -> list[int] | None:
        """Returns the positions of the requested outputs, or None if all are requested."""
        return self.metadata(request).outputs

    def requested_output_names(self, request: int) -> list[str]:
        """Returns the names of the requested outputs; of all if the request names none."""
        outputs, declared = self.requested_outputs(request), self._signature.outputs
        return [each.name for each in declared] if outputs is None else [declared[output].name for output in outputs]

    def stacked(self) -> dict[str, Array] | None:
        """Returns each input as one array over all requests; None if the requests differ in inputs or in shapes."""
        if self._stacked is None and self._message.is_stacked:
            names = self._signature.inputs
            self._stacked = {names[column.position]: self._array(column, 0) for column in self._message.columns}
        return self._stacked

    def inputs_of(self, request: int) -> dict[str, Array]:
        """Returns the inputs of one request by name."""
        stacked = self.stacked()
        if stacked is not None:
            if self.request_count == 1:
                return stacked
            start, stop = self._span(request)
            return {name: array[start:stop] for name, array in stacked.items()}
        names = self._signature.inputs
        inputs = {}
        stacked_inputs = self._stacked_columns()
        for column in self._message.columns:
            name = names[column.position]
            if column.stacked:
                start, stop = self._span(request)
                inputs[name] = stacked_inputs[column.position][start:stop]
            elif column.tensors[request].offset >= 0:
                inputs[name] = self._array(column, request)
        return inputs

    def offset_of(self, arrays: Sequence[Array]) -> int | None:
        """Returns the offset at which arrays lie back to back in the batch's data; None if they do not."""
        if isinstance(arrays[0], GpuTensor):
            return None
        if self._stacked is not None and len(arrays) == 1:
            for column, array in zip(self._message.columns, self._stacked.values()):
                if array is arrays[0] and array.flags.c_contiguous:
                    return column.tensors[0].offset
        start = _address(self.lease)
        first = end = _address(arrays[0])
        if not start + self._data_offset <= first < start + self.lease.nbytes:
            return None
        for array in arrays:
            if isinstance(array, GpuTensor) or not array.flags.c_contiguous or _address(array) != end:
                return None
            end += array.nbytes
        return first - start - self._data_offset if end <= start + self.lease.nbytes else None

    def _start_spans(self) -> None:
        metadata = self._all_metadata()
        spec = self._signature.spec
        self.spans = start_spans(
            [each.options.trace_context for each in metadata],
            [each.id for each in metadata],
            spec.name,
            spec.version,
            self.rows,
        )

    def _all_metadata(self) -> list[RequestMetadata]:
        """Returns the metadata of each request, decoded on first access; empty if no request has any."""
        if self._metadata_read is None:
            self._metadata_read = read_metadata(self.lease, self.request_count, self._metadata_start)
        return self._metadata_read

    def _stacked_columns(self) -> dict[int, Array]:
        """Returns the stacked inputs by position. Created once, because strings must be decoded."""
        if self._columns is None:
            self._columns = {
                column.position: self._array(column, 0) for column in self._message.columns if column.stacked
            }
        return self._columns

    def _span(self, request: int) -> tuple[int, int]:
        if self._starts is None:
            self._starts = [0]
            for rows in self.rows:
                self._starts.append(self._starts[-1] + rows)
        return self._starts[request], self._starts[request + 1]

    def _array(self, column: TensorColumn, number: int) -> Array:
        tensor = column.tensors[number]
        if not 0 <= tensor.offset <= self.lease.nbytes:  # NumPy does not notice an overflow
            raise ProtocolError("a tensor lies outside its message")
        offset = self._data_offset + tensor.offset
        shape = () if column.position in self._signature.scalar_inputs else tensor.shape
        if column.datatype == BYTES_CODE:
            return bytes_array(self.lease, offset, shape)
        if column.on_device:
            return cast(Array, peer_tensor(self.lease, offset, shape, DTYPE_BY_CODE[column.datatype]))
        buffer: Any = self.lease
        return np.ndarray(shape, DTYPE_BY_CODE[column.datatype], buffer, offset)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class BatchRequest(Request):
    """A request that looks up its inputs and metadata in its batch on first access."""

    # Class attributes, because a batch may have many requests.
    _data = None  # type: ignore[assignment]
    span: Any | None = None

    def __init__(self, batch: Batch, index: int) -> None:
        """Refers to request number ``index`` of ``batch``."""
        self._batch = batch
        self._index = index

    def __getattr__(self, name: str) -> Any:
        """Looks up an attribute that the request does not have yet."""
        if name not in _OF_DETAILS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        metadata = self._batch.metadata(self._index)
        own = self.__dict__  # some attributes may have been set already
        own.setdefault("parameters", dict(metadata.parameters))
        own.setdefault("request_id", metadata.id or None)
        own.setdefault("requested_output_names", self._batch.requested_output_names(self._index))
        return own[name]

    @property
    def data(self) -> dict[str, Array]:
        """The arrays by name."""
        if self._data is None:
            self._data = self._batch.inputs_of(self._index)
        return self._data

    @data.setter
    def data(self, data: dict[str, Array]) -> None:
        self._data = data

    def __getitem__(self, name: str) -> Array:
        data = self._data
        return (self.data if data is None else data)[name]

    @property  # type: ignore[misc]
    def __class__(self) -> type[Request]:  # type: ignore[override]
        """The class of what `dataclasses.replace` makes of it."""
        return Request

    def __copy__(self) -> BatchRequest:
        copied = BatchRequest(self._batch, self._index)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Request, (self.data, self.parameters, None, self.requested_output_names, self.request_id)

    def is_cancelled(self) -> bool:
        """See `Request.is_cancelled`."""
        return self._batch.is_cancelled(self._index)

    def _on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._batch.on_cancel(self._index, callback)


class WholeBatch(Sequence[Request]):
    """The requests of a batch for a decorator that joins them; the objects are created on first access.

    Only decorators of this package receive it. They pass it on to each other, and lists to anything else.
    """

    __slots__ = ("_requests", "batch")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._requests: list[Request] | None = None  # created on first access

    def requests(self) -> list[Request]:
        """Returns the requests as a list, always the same one."""
        if self._requests is None:
            self._requests = self.batch.requests()
        return self._requests

    def __len__(self) -> int:
        return self.batch.request_count

    def __getitem__(self, index: Any) -> Any:
        return self.requests()[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests())


def batch_of(requests: Sequence[Request]) -> Batch:
    """Returns the batch behind the requests of an inference callable's call.

    Args:
        requests: The callable's argument: all requests of the batch, in order.
    """
    if type(requests) is WholeBatch:
        return requests.batch
    first = requests[0]
    assert type(first) is BatchRequest
    return first._batch


def stack_requests(requests: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], list[int]]:
    """Joins the inputs of requests along their first dimension.

    Unmodified requests that came from the server as one batch are joined without a copy if nothing else refers to them.
    A caller that passes a list may use its arrays again, so these are copied and can be changed in place.

    Args:
        requests: Requests of one batch, or dictionaries of arrays.

    Returns:
        The inputs by name, and the number of rows of each request.

    Raises:
        PyTritonArrayError: The requests differ in the shapes of their inputs.
        PyTritonValidationError: They differ in their inputs.
    """
    batch = _whole_batch(requests)
    if batch is not None:
        inputs = batch.stacked()
        if inputs is not None:
            return inputs if type(requests) is WholeBatch else _copies(inputs), batch.rows
    names = list(requests[0])
    for request in requests:
        if set(request) != set(names):
            raise PyTritonValidationError(
                f"requests with different inputs cannot be joined: {sorted(names)} and {sorted(request)}; put "
                "@group_by_keys or @fill_optionals above @batch"
            )
    stacked = {}
    for name in names:
        arrays = [request[name] for request in requests]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise PyTritonArrayError(
                f"requests whose input {name!r} differs in shape cannot be joined: {sorted(shapes)}; let "
                "clients send one shape, use @sample in place of @batch, or set max_batch_size=1"
            )
        stacked[name] = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    if len(requests) == 1:
        stacked = _copies(stacked)
    if type(requests[0]) is BatchRequest and not requests[0]._batch.rows:
        return stacked, []  # the model does not batch
    first = names[0] if names else None
    return stacked, [len(request[first]) if first is not None else 1 for request in requests]


def _copies(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Copies arrays, except tensors on a GPU."""
    return {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in inputs.items()}


def common_inputs(requests: Sequence[Mapping[str, Array]]) -> KeysView[str] | None:
    """Returns the names of the inputs that all requests have, if they can be joined without a copy.

    The requests are not accessed, so `stack_requests` can still join them without a copy.

    Args:
        requests: Requests of one batch, or dictionaries of arrays.

    Returns:
        The names; None if the requests must be examined one by one.
    """
    batch = _whole_batch(requests)
    inputs = None if batch is None else batch.stacked()
    return None if inputs is None else inputs.keys()


def _whole_batch(requests: Sequence[Any]) -> Batch | None:
    """Returns the batch if the requests are all of its requests, in order and unmodified; else None."""
    if type(requests) is WholeBatch:
        if requests._requests is None:
            return requests.batch
        requests = requests.requests()
    if not requests or type(requests[0]) is not BatchRequest:
        return None
    batch: Batch = requests[0]._batch
    if len(requests) != batch.request_count:
        return None
    for index, request in enumerate(requests):
        # A request with `_data` was accessed, so its inputs may have been changed.
        if type(request) is not BatchRequest or request._index != index or request._data is not None:
            return None
        if request._batch is not batch:
            return None
    return batch
