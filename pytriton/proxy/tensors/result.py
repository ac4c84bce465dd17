"""Results: writes the return value of a function or coroutine for a batch into shared memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from pytriton.model_config.datatypes import BYTES_CODE, CODE_BY_DTYPE
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.bytes_tensor import BytesElementError
from pytriton.proxy.tensors.layout import Layout, put
from pytriton.proxy.tensors.outputs import OutputColumn, Parameters, collect_outputs
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.transport.arena import Arena
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import ABSENT, TensorColumn, TensorLocation
from pytriton.proxy.wire.inference import (
    TIMES_AT,
    RequestFailure,
    ResultMessage,
    encode_outputs,
    encode_result,
    write_times,
)

_WORTH_A_LOOK = 1 << 14  # bytes of an array; locating smaller ones costs as much as copying them
_MOST_FORMS = 256


class _ResultTemplate(NamedTuple):
    """A result without its data and times.

    Attributes:
        head: The message's header.
        size: Size of the whole message in bytes.
        starts: Offset of each array in the message; None for an array that stays in the batch.
    """

    head: bytes
    size: int
    starts: list[int | None]


class ResultWriter:
    """Checks the results of a model, and writes them into shared memory.

    Outputs with the same dtypes and shapes pass the same checks and have the same layout, so a template of each such
    result is cached.

    Args:
        signature: The model's declaration.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._forms: dict[tuple[object, ...] | None, _ResultTemplate] = {}

    def write(self, returned: object, batch: Batch, times_ns: tuple[int, int], arena: Arena) -> tuple[int, int]:
        """Writes the return value of an inference callable into a block of the arena.

        Args:
            returned: See `collect_outputs`.
            batch: The requests.
            times_ns: When the inference callable was called and when it returned (CLOCK_MONOTONIC).
            arena: The arena to allocate in.

        Returns:
            The message's offset and size.

        Raises:
            PyTritonValidationError: An output does not match the declaration.
            ArenaError: The arena is full.
        """
        known = None
        arrays: Any = None
        if type(returned) is StackedOutputs and returned.is_whole:
            arrays = returned.outputs
            key: list[object] = [batch.request_count, len(returned.rows), returned.total_rows]
            if type(arrays) is dict:
                key += arrays
                arrays = arrays.values()
            for array in arrays:
                if type(array) is not np.ndarray:
                    break
                place = batch.offset_of([array]) if array.nbytes >= _WORTH_A_LOOK else None
                key += (array.dtype, array.shape, place)
            else:
                known = tuple(key)
        form = self._forms.get(known)
        if form is None:
            columns, failures, parameters = collect_outputs(returned, batch, self._signature)
            form = None if known is None else self._template_of(columns, list(arrays), batch)
            if form is None:
                return write_result(columns, failures, parameters, batch, self._signature, times_ns, arena)
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[known] = form
        head, size, starts = form
        offset = arena.allocate(size, batch.lease if None in starts else None)
        memory: Any = arena.memory
        memory[offset : offset + len(head)] = head
        write_times(memory, offset + TIMES_AT, *times_ns)
        for array, start in zip(arrays, starts):
            if start is not None:
                put(array, memory, offset + start)
        return offset, size

    def _template_of(self, columns: list[OutputColumn], arrays: list[Array], batch: Batch) -> _ResultTemplate | None:
        """Returns the template for outputs; None if it depends on more than their dtypes and shapes."""
        signature = self._signature
        if signature.loose or len(columns) < len(signature.outputs):  # it also depends on the requested outputs
            return None
        for column, array in zip(columns, arrays):
            if column.stacked is not array or signature.outputs[column.position].code == BYTES_CODE:
                return None
        layout = Layout()
        laid_out = tuple([_lay_out(column, batch, signature, layout) for column in columns])
        head = encode_outputs(batch.request_count, laid_out)
        starts = [None if column.in_batch else len(head) + column.tensors[0].offset for column in laid_out]
        return _ResultTemplate(head, len(head) + layout.size, starts)


def write_result(
    columns: list[OutputColumn],
    failures: list[RequestFailure],
    parameters: Parameters,
    batch: Batch,
    signature: Signature,
    times_ns: tuple[int, int],
    arena: Arena,
) -> tuple[int, int]:
    """Writes outputs of any kind into a block of the arena.

    Args:
        columns: The outputs.
        failures: The failed requests.
        parameters: The parameters of responses.
        batch: The requests.
        signature: The model's declaration.
        times_ns: When the inference callable was called and when it returned (CLOCK_MONOTONIC).
        arena: The arena to allocate in.

    Returns:
        The message's offset and size.

    Raises:
        ArenaError: The arena is full.
    """
    layout = Layout(arena.devices if batch.wants_gpu else None)
    if signature.loose:
        columns = [each for column in columns for each in _by_datatype(column)]
    laid_out = tuple([_lay_out(column, batch, signature, layout) for column in columns])
    if failures or parameters:
        writer = encode_result(ResultMessage(batch.request_count, *times_ns, failures, laid_out, parameters))
        return layout.write(writer.to_bytes(), arena)
    offset, size = layout.write(encode_outputs(batch.request_count, laid_out), arena)
    write_times(arena.memory, offset + TIMES_AT, *times_ns)
    return offset, size


def _lay_out(column: OutputColumn, batch: Batch, signature: Signature, layout: Layout) -> TensorColumn:
    position, stacked, arrays = column
    code = _code_of(column) if signature.loose else signature.outputs[position].code
    try:
        if stacked is not None:
            return _lay_out_whole(position, code, [stacked], stacked.shape, batch, layout)
        if _stackable(arrays, batch):
            shape = cast(Array, arrays[0]).shape
            if len(arrays) > 1:
                shape = (sum(batch.rows), *shape[1:])
            return _lay_out_whole(position, code, cast("list[Array]", arrays), shape, batch, layout)
        tensors = [ABSENT if array is None else layout.add([array], array.shape, code) for array in arrays]
        return TensorColumn(position, code, False, tuple(tensors))
    except BytesElementError as error:
        raise error.of(f"output {signature.outputs[position].name!r}") from error.__cause__


def _lay_out_whole(
    position: int, code: int, arrays: list[Array], shape: tuple[int, ...], batch: Batch, layout: Layout
) -> TensorColumn:
    """Lays out a stacked column. A large unmodified part of an input is referenced instead of copied."""
    if code != BYTES_CODE:
        size = math.prod(shape) * arrays[0].itemsize
        offset = batch.offset_of(arrays) if size >= _WORTH_A_LOOK * len(arrays) else None
        if offset is not None:
            layout.keep(batch.lease)
            return TensorColumn(position, code, True, (TensorLocation(offset, size, shape),), in_batch=True)
        location = layout.add_on_device(arrays, shape) if batch.wants_gpu else None
        if location is not None:
            return TensorColumn(position, code, True, (location,), on_device=True)
    return TensorColumn(position, code, True, (layout.add(arrays, shape, code),))


def _by_datatype(column: OutputColumn) -> list[OutputColumn]:
    """Splits an output whose datatype differs between responses into one column per datatype."""
    codes = [None if array is None else CODE_BY_DTYPE[array.dtype] for array in column.arrays]
    kinds = dict.fromkeys(code for code in codes if code is not None)
    if len(kinds) < 2:
        return [column]
    return [
        column._replace(arrays=[array if code == kind else None for array, code in zip(column.arrays, codes)])
        for kind in kinds
    ]


def _code_of(column: OutputColumn) -> int:
    """Returns the code of the datatype that all arrays of a column have."""
    arrays = column.arrays if column.stacked is None else [column.stacked]
    return next(CODE_BY_DTYPE[array.dtype] for array in arrays if array is not None)


def _stackable(arrays: list[Array | None], batch: Batch) -> bool:
    first = arrays[0]
    if len(arrays) == 1:
        return first is not None
    return (
        first is not None
        and bool(batch.rows)
        and all(
            array is not None and array.shape[:1] == (rows,) and array.shape[1:] == first.shape[1:]
            for array, rows in zip(arrays, batch.rows)
        )
    )
