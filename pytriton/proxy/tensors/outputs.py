"""Checks the outputs of an inference callable against the model's declaration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.datatypes import CODE_BY_DTYPE
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.conversion import conform
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.tensors.signature import OutputSignature, Signature
from pytriton.proxy.tensors.stacked_outputs import PLAIN_OUTPUTS, Outputs, StackedOutputs, as_outputs, wrong_rows
from pytriton.proxy.types import Array, Request, Response, described
from pytriton.proxy.wire.encoding import ParameterValue
from pytriton.proxy.wire.inference import RequestFailure


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
        PyTritonValidationError: An output does not match the declaration, or a parameter cannot be sent.
    """
    if type(returned) is StackedOutputs and returned.is_whole and len(returned.rows) == batch.request_count:
        by_index = _by_index(returned.outputs, signature)
        if len(by_index) < len(signature.outputs):
            for request in range(batch.request_count):
                _check_requested(by_index, returned.outputs, batch.requested_outputs(request), signature)
        columns = [
            OutputColumn(index, _checked_rows(array, signature.outputs[index], signature, returned.total_rows), [])
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
            if batch.spans is not None:
                batch.spans.fail_request(request, response)
            continue
        if of_response := parameters_of(response):
            parameters[request] = of_response
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
    returned = as_outputs(response)
    by_index = _by_index(returned, signature)
    outputs = signature.outputs
    if len(by_index) < len(outputs) and not signature.loose:
        _check_requested(by_index, returned, batch.requested_outputs(request), signature)
    return {index: _checked(array, outputs[index], signature) for index, array in by_index.items()}


def parameters_of(response: object) -> dict[str, ParameterValue] | None:
    """Returns the parameters of a response, if it has any.

    Raises:
        PyTritonValidationError: One of them cannot be sent.
    """
    parameters = response.parameters if type(response) is Response else None
    if not parameters:
        return None
    if not isinstance(parameters, dict):
        raise PyTritonValidationError(f"parameters of a response are a dictionary, not {described(parameters)}")
    for name, value in parameters.items():
        fits = isinstance(value, (str, float)) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
        if not fits or not isinstance(name, str):
            raise PyTritonValidationError(
                f"parameter {name!r} of a response is {value!r}, of type {type(value).__name__}: names are strings, "
                "and values strings, integers of 64 bits, booleans or floats; convert those of NumPy by .item()"
            )
    return parameters


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
        remedy = "without @batch or @sample it takes a list of requests and returns a list of responses"
        if isinstance(returned, (Iterator, AsyncIterator)):
            remedy = "return a list or, to send several responses to a request, set ModelConfig(decoupled=True)"
        raise PyTritonValidationError(
            f"the inference callable returned {described(returned)}, not a list with one response per request; {remedy}"
        )
    if len(returned) != count:
        raise PyTritonValidationError(
            f"the inference callable returned {len(returned)} responses to {count} requests: return one per request"
        )
    return returned


def _by_index(outputs: Outputs, signature: Signature) -> dict[int, Array]:
    """Returns outputs by their position in the model's configuration."""
    kind = type(outputs)
    if (
        kind not in PLAIN_OUTPUTS
        and isinstance(outputs, Request)
        and not all(name in signature.output_index for name in outputs)
    ):
        outputs = list(outputs.values())  # a request that is returned unchanged: its inputs are the outputs
    # Checking a list for the abstract class takes half a microsecond.
    if isinstance(outputs, dict) or (kind not in PLAIN_OUTPUTS and isinstance(outputs, Mapping)):
        try:
            return {signature.output_index[name]: array for name, array in outputs.items()}
        except KeyError as error:
            unknown = error.args[0]
        return _known(outputs, unknown, signature)
    if len(outputs) > len(signature.outputs):
        if all(isinstance(each, Mapping) for each in outputs):
            raise PyTritonValidationError(
                f"the inference callable returned {len(outputs)} dictionaries instead of one: return a single "
                "dictionary, below @batch with arrays over the whole batch"
            )
        raise PyTritonValidationError(
            f"the inference callable returned {len(outputs)} outputs, but the model has {len(signature.outputs)}: "
            f"{', '.join(map(repr, signature.output_index))}"
        )
    return dict(enumerate(outputs))  # type: ignore[arg-type]  # a sequence: no mapping gets here


def _known(outputs: Mapping[str, Array], unknown: str, signature: Signature) -> dict[int, Array]:
    """Returns the outputs that the model has; with ``strict=True``, it must have all of them."""
    problem = (
        f"the inference callable returned an output {unknown!r} that the model does not have: its outputs are "
        f"{', '.join(map(repr, signature.output_index))}"
    )
    if signature.strict or not any(name in signature.output_index for name in outputs):
        raise PyTritonValidationError(problem)
    signature.warn(f"{problem}. It is dropped.")
    index = signature.output_index
    return {index[name]: array for name, array in outputs.items() if name in index}


def _check_requested(
    by_index: dict[int, Array], outputs: Outputs, requested: list[int] | None, signature: Signature
) -> None:
    """Warns about missing outputs; outputs in order must be complete, since their positions identify them."""
    for index in range(len(signature.outputs)) if requested is None else requested:
        if index not in by_index:
            problem = f"the inference callable did not return the output {signature.outputs[index].name!r}"
            if signature.strict or not isinstance(outputs, Mapping):
                raise PyTritonValidationError(problem)
            signature.warn(f"{problem}. The response lacks it.")
            return


def _checked_rows(array: object, output: OutputSignature, signature: Signature, total: int) -> Array:
    """Returns the array of a whole batch like `_checked`, without rows beyond those of the batch."""
    checked = _checked(array, output, signature)
    if not isinstance(checked, np.ndarray) or checked.ndim == 0 or len(checked) == total:
        return checked
    problem = wrong_rows(repr(output.name), len(checked), total)
    if len(checked) < total or signature.strict:
        raise problem
    signature.warn(f"{problem}. The rows beyond that are dropped.")
    return checked[:total]


def _checked(array: object, output: OutputSignature, signature: Signature) -> Array:
    """Returns the array, converted to the declared dtype if necessary."""
    if type(array) is np.ndarray and array.dtype is output.dtype and array.ndim == output.rank and output.is_plain:
        return array
    if not signature.loose:
        return conform(array, output, signature)
    if not isinstance(array, (np.ndarray, GpuTensor)):
        raise PyTritonValidationError(f"output {output.name!r} is {described(array)}, not a NumPy array")
    return cast(Array, array)
