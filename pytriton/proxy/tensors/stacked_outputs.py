"""The outputs of a whole batch, which behave like a list of the requests' outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union, cast

import numpy as np

from pytriton.exceptions import PyTritonArrayError, PyTritonValidationError
from pytriton.proxy.types import Array, described

Outputs = Union[Mapping[str, Array], Sequence[Array]]

PLAIN_OUTPUTS = frozenset({dict, list, tuple})
"""The types of outputs that most functions return."""

_OF_ELEMENTS = (set(dir(list)) - set(dir(object)) | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}) - {
    "__class_getitem__",
    "__len__",
}
"""The methods of lists that read or change the elements."""


class StackedOutputs(list[Any]):
    """The outputs of a whole batch, as ``@batch`` callables return them.

    It is a list with the outputs of each request, which are split on first access. A worker sends the unsplit arrays,
    so that nothing is split on the way back to the server.

    Args:
        outputs: Arrays over all requests, by name or in the order of the model's outputs.
        rows: Number of rows of each request.
        names: The names of the model's outputs; None if they are unknown.

    Rows beyond those of the requests are dropped: a model that computes batches of a fixed size returns them.

    Raises:
        PyTritonArrayError: ``outputs`` have fewer rows than the requests.
        PyTritonValidationError: They are not arrays.

    Examples:
        >>> outputs = StackedOutputs({"y": np.array([[1], [2], [3]])}, [1, 2])
        >>> [each["y"].tolist() for each in outputs]
        [[[1]], [[2], [3]]]
    """

    is_whole = True
    """Whether the elements have not been accessed; afterwards, they may have been changed."""
    _names: Sequence[str] | None = None

    def __init__(self, outputs: object, rows: list[int], names: Sequence[str] | None = None) -> None:
        """Checks that there are enough rows."""
        self.rows = rows
        self.outputs: Outputs = outputs  # type: ignore[assignment]  # if they are none, the next line says so
        if names is not None:
            self._names = names
        self.total_rows = total = sum(rows)
        for array in arrays_of(outputs):
            if isinstance(array, np.ndarray) and array.ndim > 0 and len(array) < total:
                raise wrong_rows(_place(array, self.outputs), len(array), total)

    def __len__(self) -> int:
        return len(self.rows) if self.is_whole else list.__len__(self)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __reduce_ex__(self, _: object) -> Any:
        return self.__reduce__()

    def _split(self) -> None:
        if not self.is_whole:
            return
        self.is_whole = False
        start = 0
        for rows in self.rows:
            list.append(self, self._cut(start, start + rows))
            start += rows

    def _cut(self, start: int, stop: int) -> Outputs:
        outputs = self.outputs
        if isinstance(outputs, Mapping):
            return {name: self._rows_of(array, start, stop) for name, array in outputs.items()}
        arrays = [self._rows_of(array, start, stop) for array in outputs]
        return arrays if self._names is None else by_name(arrays, self._names)

    def _rows_of(self, array: Any, start: int, stop: int) -> Array:
        if isinstance(array, np.ndarray) and array.ndim:
            return array[start:stop]
        try:
            rows = len(array)
            part: Array = array[start:stop]
        except TypeError:  # a number, which is refused later
            return cast(Array, array)
        if rows < self.total_rows:
            raise wrong_rows(_place(array, self.outputs), rows, self.total_rows)
        return part


def _splitting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of lists that splits the outputs first."""

    @functools.wraps(method)
    def call(self: StackedOutputs, *args: Any, **kwargs: Any) -> Any:
        self._split()
        return method(self, *args, **kwargs)

    return call


for _name in _OF_ELEMENTS | {"__repr__"}:
    setattr(StackedOutputs, _name, _splitting(getattr(list, _name)))


def by_name(outputs: Any, names: Sequence[str]) -> Any:
    """Converts outputs in the model's order to a dictionary; returns anything else unchanged."""
    if type(outputs) in (list, tuple) and len(outputs) == len(names):
        return dict(zip(names, outputs))
    return outputs


def as_outputs(outputs: object) -> Outputs:
    """Checks that a callable returned outputs.

    Raises:
        PyTritonValidationError: It returned something else.
    """
    if type(outputs) in PLAIN_OUTPUTS:  # first: checking for the abstract classes takes a microsecond
        return outputs  # type: ignore[return-value]
    if isinstance(outputs, Mapping) or (isinstance(outputs, Sequence) and not isinstance(outputs, (str, bytes))):
        return outputs
    if isinstance(outputs, BaseException):  # returned instead of outputs
        raise outputs
    raise PyTritonValidationError(
        f"the inference callable returned {described(outputs)}: return a dictionary of arrays by output name, or a "
        "list or tuple of arrays in the order of the outputs"
    )


def arrays_of(outputs: object) -> Iterable[Array]:
    """Returns the arrays of outputs; raises as `as_outputs` does."""
    if type(outputs) is dict:
        return outputs.values()
    outputs = as_outputs(outputs)
    return outputs.values() if isinstance(outputs, Mapping) else outputs


def wrong_rows(output: str, rows: int, total: int) -> PyTritonArrayError:
    """Returns the error for an output that does not have the rows of its batch."""
    return PyTritonArrayError(
        f"output {output} has {rows} rows, but the batch has {total}: its first dimension is the batch"
    )


def _place(array: Array, outputs: Outputs) -> str:
    """Returns the name or position of an array among the outputs."""
    position = [each is array for each in arrays_of(outputs)].index(True)
    return repr(list(outputs)[position]) if isinstance(outputs, Mapping) else f"number {position + 1}"
