"""Checks the user's inputs against the model, and converts them to arrays."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytriton.client.exceptions import (
    PyTritonClientInputError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientValueError,
)
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.tensors.bytes_tensor import BINARY, BUFFERS, object_array
from pytriton.proxy.tensors.host_tensor import ARRAY_INTERFACES, cast_call, has_masked_elements, host_array
from pytriton.utils.suggestions import nearest

Array = np.ndarray[Any, np.dtype[Any]]

_PYTHON_TYPES = (bool, int, float, str, bytes, list, tuple)
_OPTIONS = ("parameters", "headers", "outputs", "request_id", "priority", "timeout_s")
_ARGUMENTS_OF_CLIENTS = frozenset(
    {"access_token", "convert_dtypes", "inference_timeout_s", "init_timeout_s", "model_name", "model_version", "url"}
)
OF_BATCHES = "infer_batch takes batches"
"""The advice in the error for a batch that is given as one sample."""
_MAX_DEPTH = 64  # NumPy's maximum
_OBJECT = np.dtype(np.object_)


class _MisfitError(Exception):
    """A value is not a valid input; the caller adds the names of input and model to the message."""


def match(
    config: TritonModelConfig, positional: Sequence[Any], named: Mapping[str, Any]
) -> list[tuple[TensorSpec, Any]]:
    """Assigns values to the inputs of a model.

    Args:
        config: The model.
        positional: Values in the order of the model's inputs.
        named: Values by name.

    Returns:
        The given inputs, in the model's order, without those that are None: optional inputs may be omitted so.

    Raises:
        PyTritonClientValueError: Values are given in both ways, not at all though some are required, or too many.
        PyTritonClientInputError: A name is unknown, or a required one is missing.
    """
    _check_no_dictionary(config, positional)
    if positional and named:
        _check_known(config, named)
        raise PyTritonClientValueError(
            f"Give inputs either by position or by name, not both: {_described(config)}, and got {len(positional)} by "
            f"position and {_names(named)} by name."
        )
    if not positional and not named and not all(spec.optional for spec in config.inputs):
        raise PyTritonClientValueError(f"No input was given: {_described(config)}.")
    if len(positional) > len(config.inputs):
        raise PyTritonClientValueError(f"{len(positional)} inputs were given: {_described(config)}.")
    values = named or {spec.name: value for spec, value in zip(config.inputs, positional, strict=False)}
    matched = [(spec, values[spec.name]) for spec in config.inputs if values.get(spec.name) is not None]
    if len(matched) < len(values) or len(matched) < len(config.inputs):
        _check_names(config, values)
    return matched


def arrays_of_sample(
    config: TritonModelConfig, values: Iterable[tuple[TensorSpec, Any]], convert: bool
) -> list[tuple[TensorSpec, Array]]:
    """Converts one sample to arrays; if the model batches, to a batch of one.

    Args:
        config: The model.
        values: Its inputs and their values, without the batch dimension.
        convert: Convert arrays of another dtype if no value can change.

    Raises:
        PyTritonClientInputError: A value is not an array of the input's dtype and shape.
    """
    arrays = []
    for spec, value in values:
        try:
            array = _as_array(value, spec, convert)
            if array.ndim == 0 and spec.shape and all(dim in (-1, 1) for dim in spec.shape):
                array = array.reshape((1,) * len(spec.shape))
            if not fits(array.shape, spec.shape):
                is_batch = config.max_batch_size and _may_be_batch(array.shape, spec.shape)
                raise _MisfitError(f"the value has shape {array.shape}{f'; {OF_BATCHES}' if is_batch else ''}")
        except _MisfitError as misfit:
            where = " without the batch dimension" if config.max_batch_size else ""
            raise _error(config, spec, misfit, where) from misfit.__cause__
        arrays.append((spec, array[np.newaxis] if config.max_batch_size else array))
    return arrays


def arrays_of_batch(
    config: TritonModelConfig, values: Iterable[tuple[TensorSpec, Any]], convert: bool
) -> list[tuple[TensorSpec, Array]]:
    """Converts a batch of any size to arrays.

    Args:
        config: The model.
        values: Its inputs and their values, whose first dimension is the batch.
        convert: Convert arrays of another dtype if no value can change.

    Raises:
        PyTritonClientModelDoesntSupportBatchingError: The model does not batch.
        PyTritonClientInputError: A value is not an array of the input's dtype and shape, the batches differ in size, or
            there is no value that tells the size.
    """
    if not config.max_batch_size:
        raise PyTritonClientModelDoesntSupportBatchingError(
            f"Model {config.model_name!r} does not support batching; use infer_sample."
        )
    arrays: list[tuple[TensorSpec, Array]] = []
    for spec, value in values:
        try:
            array = _as_array(value, spec, convert)
            if array.ndim == 0 or not fits(array.shape[1:], spec.shape):
                raise _MisfitError(f"the value has shape {array.shape}{_remedy_of_batch(array.shape, spec.shape)}")
            if array.shape[0] == 0:
                raise _MisfitError("the batch is empty")
        except _MisfitError as misfit:
            raise _error(config, spec, misfit, " after the batch dimension") from misfit.__cause__
        arrays.append((spec, array))
    if not arrays and config.inputs:
        raise PyTritonClientInputError(
            f"No input was given, so the size of the batch is unknown: {_described(config)}; infer_sample needs none."
        )
    if len(arrays) > 1 and len({array.shape[0] for _, array in arrays}) > 1:
        sizes = ", ".join(f"{array.shape[0]} of {spec.name!r}" for spec, array in arrays)
        raise PyTritonClientInputError(
            f"The inputs have batches of different sizes: {sizes}; {_described(config)} after the batch dimension."
        )
    return arrays


def _may_be_batch(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Returns whether a value given as one sample is a batch, or a list of the single values of several samples."""
    return len(shape) == len(dims) + 1 or (dims == (1,) and len(shape) == 1 and shape != (0,))


def _remedy_of_batch(shape: tuple[int, ...], dims: tuple[int, ...]) -> str:
    if len(shape) != len(dims):
        return ""
    if dims == (1,) and shape != (1,):
        return f"; np.reshape(value, (-1, 1)) makes it a batch of {shape[0]}"
    return "; infer_sample takes one sample"


def _described(config: TritonModelConfig) -> str:
    inputs = ", ".join(map(str, config.inputs)) or "no inputs"
    return f"model {config.model_name!r} takes {inputs}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _check_no_dictionary(config: TritonModelConfig, positional: Sequence[Any]) -> None:
    for value in positional:
        if type(value) is not np.ndarray and isinstance(value, Mapping):
            raise PyTritonClientInputError(
                f"A dictionary was given by position, with the keys {_names(value)}; write ** before it, to give its "
                f"values by name: {_described(config)}."
            )


def _check_known(config: TritonModelConfig, values: Mapping[str, Any]) -> None:
    known = {spec.name for spec in config.inputs}
    unknown = [name for name in values if name not in known]
    if unknown:
        meant = _meant(unknown[0], [*known, *_OPTIONS])
        raise PyTritonClientInputError(f"There is no input {_names(unknown)}{meant}: {_described(config)}.")


def _meant(name: str, known: Sequence[str]) -> str:
    """Suggests what an unknown name may have meant."""
    if name in _ARGUMENTS_OF_CLIENTS:
        instead = "; timeout_s is that of one request" if name == "inference_timeout_s" else ""
        return f" (it is an argument of the client, not of its requests{instead})"
    near = nearest(name, known)
    if near is None or near == name:  # an option that this client does not have
        return ""
    return f" (did you mean {near!r}?)" if near not in _OPTIONS else f" (did you mean the option {near}?)"


def _check_names(config: TritonModelConfig, values: Mapping[str, Any]) -> None:
    _check_known(config, values)
    missing = [spec.name for spec in config.inputs if values.get(spec.name) is None and not spec.optional]
    if missing:
        nothing = ", as None was given" if any(name in values for name in missing) else ""
        subject = f"The input {_names(missing)} is" if len(missing) == 1 else f"The inputs {_names(missing)} are"
        raise PyTritonClientInputError(f"{subject} missing{nothing}: {_described(config)}.")


def _error(config: TritonModelConfig, spec: TensorSpec, misfit: _MisfitError, where: str) -> PyTritonClientInputError:
    return PyTritonClientInputError(
        f"Input {spec.name!r} of model {config.model_name!r} is {spec.datatype.name} {spec.shape}{where}, and {misfit}."
    )


def fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Returns whether ``dims`` allow a shape; -1 allows any size."""
    if len(shape) != len(dims):
        return False
    for dim, size in zip(dims, shape, strict=True):  # noqa: SIM110  (on every request: a generator takes longer)
        if dim != size and dim != -1:
            return False
    return True


def _as_array(value: Any, spec: TensorSpec, convert: bool) -> Array:
    array = value if type(value) is np.ndarray else _made_array(value, spec)
    wanted = spec.datatype.numpy or _dtype_of(spec)
    if array.dtype is not wanted and array.dtype != wanted:
        array = _converted(value, array, wanted, convert)
    return _encoded(array) if array.dtype is _OBJECT else array


def _dtype_of(spec: TensorSpec) -> np.dtype[Any]:
    try:
        return spec.numpy_dtype
    except PyTritonBadParameterError as error:
        raise _MisfitError(error.message.rstrip(".")) from None


def _made_array(value: Any, spec: TensorSpec) -> Array:
    if isinstance(value, BUFFERS) and spec.datatype.name == "BYTES":
        value = bytes(value)
    if isinstance(value, _PYTHON_TYPES) and not hasattr(_first_leaf(value), "dtype"):
        return _from_python(value, _dtype_of(spec))
    if has_masked_elements(value):
        raise _MisfitError(
            "the value has masked elements, whose hidden values would be sent; replace them, as .filled(0) does"
        )
    try:
        if isinstance(value, list | tuple | memoryview) or any(hasattr(value, name) for name in ARRAY_INTERFACES):
            return host_array(value, keeps_bfloat16=True)
    except Exception as error:
        lengths = _lengths(value)
        if lengths:
            raise _MisfitError(f"the value cannot be made an array: {lengths}") from None
        reason = str(error).rstrip(".")
        raise _MisfitError(f"the value, of type {type(value).__name__}, cannot be made an array: {reason}") from error
    raise _MisfitError(
        f"the value is of type {type(value).__name__}; give an array, a number, a string, a list of these, or anything "
        "with __array__ or __dlpack__"
    )


def _first_leaf(value: Any) -> Any:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _from_python(value: Any, wanted: np.dtype[Any]) -> Array:
    """Converts Python values to an array of the input's dtype, if it can represent them."""
    try:
        array = object_array(value) if wanted is _OBJECT else np.array(value)
    except (ValueError, OverflowError) as error:
        raise _MisfitError(f"the value cannot be made an array: {_lengths(value) or error}") from None
    if wanted is _OBJECT:
        return array
    if not array.size:
        return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "fO":
        array = _of_large_integers(value, array)
    if wanted.kind not in "biu" and array.dtype is _OBJECT:
        array = _of_huge_integers(array)
    kind = array.dtype.kind
    if kind in "biu" and wanted.kind in "iu":
        info = np.iinfo(wanted)
        for number in (int(array.min()), int(array.max())):
            if not info.min <= number <= info.max:
                raise _MisfitError(f"the value holds {number}, which does not fit into it")
        return array.astype(wanted)
    if kind == "b" and wanted.kind == "b":
        return array
    if kind in "biuf" and wanted.kind not in "biu":  # floating point; the kind of ml_dtypes' bfloat16 is V
        with np.errstate(over="ignore"):
            cast = array.astype(wanted)
        if not np.array_equal(np.isfinite(array), np.isfinite(cast.astype(np.float64))):
            raise _MisfitError(f"the value holds a number that is too large for {wanted.name}")
        return cast
    raise _MisfitError(f"the value holds {_unfit(value, wanted)}")


def _lengths(value: Any, depth: int = 0) -> str:
    """Describes which parts of a nested list differ in length; empty if none do."""
    if not isinstance(value, list | tuple) or depth > _MAX_DEPTH:
        return ""
    parts = [part for part in value if isinstance(part, list | tuple) or np.ndim(part)]
    if len(parts) < len(value):
        return "it holds both lists and single values" if parts else ""
    sizes = list(map(len, parts))
    if len(set(sizes)) > 1:
        other = next(size for size in sizes if size != sizes[0])
        return f"its rows have different lengths, such as {sizes[0]} and {other}"
    return next((lengths for part in parts if (lengths := _lengths(part, depth + 1))), "")


def _unfit(value: Any, wanted: np.dtype[Any]) -> str:
    """Describes the first element that is not a number of a dtype."""
    for leaf in _leaves(value):
        element = leaf.item() if isinstance(leaf, np.generic) else leaf
        shown = reprlib.repr(element)
        if element is None:
            return "None, which is not a number"
        if isinstance(element, str | bytes):
            return f"{shown}, which is text, not a number"
        if wanted.kind == "b" and not isinstance(element, bool | np.bool_):
            return f"{shown}, which is neither True nor False"
        if not isinstance(element, int | float):
            return f"{shown}, of type {type(element).__name__}, which is not a number"
        if wanted.kind in "iu" and isinstance(element, float):
            return f"{shown}, which is not an integer"
    return "a number that does not fit into it"


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, list | tuple) and depth <= _MAX_DEPTH:
        for part in value:
            yield from _leaves(part, depth + 1)
    else:
        yield value


def _of_huge_integers(array: Array) -> Array:
    """Converts integers of more than 64 bits, which NumPy keeps as objects, to floating point."""
    if not all(isinstance(element, int | float) for element in array.ravel().tolist()):
        return array
    try:
        return array.astype(np.float64)
    except OverflowError:
        return array


def _of_large_integers(value: Any, array: Array) -> Array:
    """Handles integers that need 64 unsigned bits, which NumPy would convert to floating point."""
    objects = np.array(value, dtype=_OBJECT)
    elements = objects.ravel().tolist()
    if all(isinstance(element, int) for element in elements) and min(elements) >= 0 and max(elements) < 1 << 64:
        return objects.astype(np.uint64)
    return array


def _converted(value: Any, array: Array, wanted: np.dtype[Any], convert: bool) -> Array:
    """Converts the array that was made of a value to the wanted dtype, if that loses nothing."""
    if wanted is _OBJECT:
        if array.dtype.kind in "SUT":
            return array if array.dtype.kind == "S" else array.astype(_OBJECT)
        raise _MisfitError(f"the value has dtype {array.dtype}; BYTES are str or bytes")
    if array.dtype.kind in "SUTO":
        raise _MisfitError(f"the value has dtype {array.dtype}; give an array of numbers, such as of {wanted.name}")
    if array.dtype.newbyteorder("=") == wanted:  # as in files of other machines: no value changes
        return array.astype(wanted)
    if not np.can_cast(array.dtype, wanted, "safe"):
        raise _MisfitError(f"the value has dtype {array.dtype}; if that loses nothing, use {cast_call(value, wanted)}")
    if not convert:
        raise _MisfitError(f"the value has dtype {array.dtype}; use {cast_call(value, wanted)}, or convert_dtypes=True")
    return array.astype(wanted)


def _encoded(array: Array) -> Array:
    """Encodes strings as UTF-8."""
    elements = array.ravel().tolist()
    if all(type(element) is bytes for element in elements):
        return array
    encoded = np.empty(len(elements), _OBJECT)
    for index, element in enumerate(elements):
        if isinstance(element, str):
            try:
                encoded[index] = element.encode()
            except UnicodeEncodeError:
                raise _MisfitError(f"the string {element!r} cannot be encoded as UTF-8") from None
        elif isinstance(element, BINARY):
            encoded[index] = bytes(element)
        else:
            raise _MisfitError(f"the value holds {reprlib.repr(element)}, which is neither str nor bytes")
    return encoded.reshape(array.shape)
