"""The outputs that an inference callable returned, checked against the model's declaration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.datatypes import BYTES_CODE, BYTES_KINDS, CODE_BY_DTYPE
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.signature import OutputSignature, Signature
from pytriton.proxy.types import Array, Request, Response, described
from pytriton.proxy.wire.encoding import ParameterValue
from pytriton.proxy.wire.inference import RequestFailure

_PLAIN_OUTPUTS = frozenset({dict, list, tuple})

Outputs = Union[Mapping[str, Array], Sequence[Array]]


class StackedOutputs(Sequence[Outputs]):
    """The outputs of a whole batch, as ``@batch`` callables return them.

    It behaves as a list with the outputs of each request. A worker takes it as a whole, so that nothing is split on the
    way back to the server.

    Args:
        outputs: Arrays over all requests, by name or in the order of the model's outputs.
        rows: Number of rows of each request.

    Raises:
        PyTritonValidationError: ``outputs`` are not arrays, or do not have as many rows as the requests.
    """

    def __init__(self, outputs: object, rows: list[int]) -> None:
        """Checks the number of rows."""
        self.rows = rows
        self.outputs: Outputs = outputs  # type: ignore[assignment]  # if they are none, the next line says so
        total = sum(rows)
        for array in _arrays(outputs):
            if isinstance(array, np.ndarray) and array.ndim > 0 and len(array) != total:
                raise PyTritonValidationError(
                    f"output {_place(array, self.outputs)} has {len(array)} rows, but the batch has {total}: its first "
                    "dimension is the batch"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = sum(self.rows[:index])
        return self._cut(start, start + self.rows[index])

    def __iter__(self) -> Iterator[Outputs]:
        start = 0
        for rows in self.rows:
            yield self._cut(start, start + rows)
            start += rows

    def _cut(self, start: int, stop: int) -> Outputs:
        if isinstance(self.outputs, Mapping):
            return {name: array[start:stop] for name, array in self.outputs.items()}
        return [array[start:stop] for array in self.outputs]


class OutputColumn(NamedTuple):
    """One output over all requests: one array if it is stacked, otherwise one (or None) per request."""

    position: int
    stacked: Array | None
    arrays: list[Array | None]


Parameters = dict[int, dict[str, ParameterValue]]
"""The parameters of responses that have any, by request."""


def collect_outputs(
    returned: object, batch: Batch, signature: Signature
) -> tuple[list[OutputColumn], list[RequestFailure], Parameters]:
    """Groups the returned responses by output, and checks them.

    Args:
        returned: One response per request: a dictionary, list or tuple of arrays, a request (whose inputs become the
            outputs), or an exception.
        batch: The requests.
        signature: The model's declaration.

    Returns:
        The outputs, the failed requests, and the parameters of responses.

    Raises:
        PyTritonValidationError: An output does not match the declaration.
    """
    if isinstance(returned, StackedOutputs) and len(returned.rows) == batch.request_count:
        by_index = _by_index(returned.outputs, signature)
        if len(by_index) < len(signature.outputs):
            for request in range(batch.request_count):
                _check_requested(by_index, batch.requested_outputs(request), signature)
        columns = [
            OutputColumn(index, _checked(array, signature.outputs[index], signature), [])
            for index, array in by_index.items()
        ]
        return columns, [], {}
    responses = as_responses(returned, batch.request_count)
    failures = []
    parameters: Parameters = {}
    arrays: dict[int, list[Array | None]] = {}
    for request, response in enumerate(responses):
        if isinstance(response, BaseException):
            failures.append(failure_of(response, signature.model, request))
            continue
        if type(response) is Response and response.parameters:
            parameters[request] = response.parameters
        for index, array in checked_outputs(response, batch, request, signature).items():
            column = arrays.setdefault(index, [None] * len(responses))
            column[request] = array
    return [OutputColumn(index, None, column) for index, column in arrays.items()], failures, parameters


def checked_outputs(response: object, batch: Batch, request: int, signature: Signature) -> dict[int, Array]:
    """Returns the outputs of one response by position.

    Args:
        response: A dictionary, list or tuple of arrays, or a request.
        batch: The batch of the request.
        request: The request's number in the batch.
        signature: The model's declaration.

    Raises:
        PyTritonValidationError: An output does not match the declaration.
    """
    by_index = _by_index(_as_outputs(response), signature)
    outputs = signature.outputs
    if len(by_index) < len(outputs) and not signature.loose:
        _check_requested(by_index, batch.requested_outputs(request), signature)
    return {index: _checked(array, outputs[index], signature) for index, array in by_index.items()}


def code_of(array: Array, position: int, signature: Signature) -> int:
    """Returns the code of the datatype in which an output is sent."""
    return CODE_BY_DTYPE[array.dtype] if signature.loose else signature.outputs[position].code


def as_responses(returned: object, count: int) -> Sequence[object]:
    """Checks that a callable returned one item for each of ``count`` requests, and returns them.

    Raises:
        PyTritonValidationError: It returned something else.
    """
    # Lists first: checking for the abstract class takes half a microsecond.
    if type(returned) is not list and (not isinstance(returned, Sequence) or isinstance(returned, (str, bytes))):
        raise PyTritonValidationError(
            f"the inference callable returned {described(returned)}, not a list with one response per request; without "
            "@batch or @sample it takes a list of requests and returns a list of responses"
        )
    if len(returned) != count:
        raise PyTritonValidationError(
            f"the inference callable returned {len(returned)} responses to {count} requests: return one per request"
        )
    return returned


def _as_outputs(outputs: object) -> Outputs:
    if type(outputs) in _PLAIN_OUTPUTS:  # first, because checking for the abstract classes takes a microsecond
        return outputs  # type: ignore[return-value]
    if isinstance(outputs, Mapping) or (isinstance(outputs, Sequence) and not isinstance(outputs, (str, bytes))):
        return outputs
    raise PyTritonValidationError(
        f"the inference callable returned {described(outputs)}: return a dictionary of arrays by output name, or a "
        "list or tuple of arrays in the order of the outputs"
    )


def _place(array: Array, outputs: Outputs) -> str:
    """Returns the name or position of an array among the outputs."""
    position = [each is array for each in _arrays(outputs)].index(True)
    return repr(list(outputs)[position]) if isinstance(outputs, Mapping) else f"number {position + 1}"


def _arrays(outputs: object) -> Iterable[Array]:
    """Returns the arrays of outputs.

    Raises:
        PyTritonValidationError: ``outputs`` is neither a mapping nor a sequence.
    """
    if type(outputs) is dict:
        return outputs.values()
    outputs = _as_outputs(outputs)
    return outputs.values() if isinstance(outputs, Mapping) else outputs


def _by_index(outputs: Outputs, signature: Signature) -> dict[int, Array]:
    """Returns outputs by their position in the model's configuration."""
    kind = type(outputs)
    if (
        kind not in _PLAIN_OUTPUTS
        and isinstance(outputs, Request)
        and not all(name in signature.output_index for name in outputs)
    ):
        outputs = list(outputs.values())  # a request that is returned unchanged: its inputs are the outputs
    # Checking a list for the abstract class takes half a microsecond.
    if isinstance(outputs, dict) or (kind not in _PLAIN_OUTPUTS and isinstance(outputs, Mapping)):
        try:
            return {signature.output_index[name]: array for name, array in outputs.items()}
        except KeyError as error:
            raise PyTritonValidationError(
                f"the inference callable returned an output {error.args[0]!r} that the model does not have: its "
                f"outputs are {', '.join(map(repr, signature.output_index))}"
            ) from None
    if len(outputs) > len(signature.outputs):
        raise PyTritonValidationError(
            f"the inference callable returned {len(outputs)} outputs, but the model has {len(signature.outputs)}: "
            f"{', '.join(map(repr, signature.output_index))}"
        )
    return dict(enumerate(outputs))  # type: ignore[arg-type]  # a sequence: no mapping gets here


def _check_requested(by_index: dict[int, Array], requested: list[int] | None, signature: Signature) -> None:
    for index in range(len(signature.outputs)) if requested is None else requested:
        if index not in by_index:
            raise PyTritonValidationError(
                f"the inference callable did not return the output {signature.outputs[index].name!r}"
            )


def _checked(array: object, output: OutputSignature, signature: Signature) -> Array:
    """Returns the array if it matches the declaration."""
    if type(array) is np.ndarray and array.dtype is output.dtype and array.ndim == output.rank and output.is_plain:
        return array
    if not isinstance(array, np.ndarray):
        raise PyTritonValidationError(
            f"output {output.name!r} is {described(array)}, not a NumPy array: convert it with np.asarray"
        )
    if signature.loose:
        return array
    dtype = array.dtype
    if (
        dtype is not output.dtype
        and dtype != output.dtype
        and not (output.code == BYTES_CODE and dtype.kind in BYTES_KINDS)
    ):
        hint = "" if dtype.kind in "MmVc" else f": convert it with .astype({output.dtype.name!r})"
        raise PyTritonValidationError(
            f"output {output.name!r} has dtype {dtype}, but {_declared(output)} was declared{hint}"
        )
    if array.ndim != output.rank:
        dims, were = ("dimension", "was") if output.rank == 1 else ("dimensions", "were")
        batch = ", the batch among them," if signature.batching else ""
        raise PyTritonValidationError(
            f"output {output.name!r} has shape {array.shape}, but {output.rank} {dims}{batch} {were} declared"
        )
    if signature.strict and any(wanted not in (-1, dim) for wanted, dim in zip(output.shape, array.shape)):
        raise PyTritonValidationError(
            f"output {output.name!r} has shape {array.shape}, but {output.shape} was declared (-1 is any size)"
        )
    return array if array.ndim else array.reshape(1)  # Triton has no tensors without dimensions


def _declared(output: OutputSignature) -> str:
    return "bytes" if output.code == BYTES_CODE else str(output.dtype)
