"""Encodes one request for a transport, and decodes its response."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from pytriton.client.core.deadlines import check_timeout
from pytriton.client.core.inputs import Array, arrays_of_batch, arrays_of_sample, match
from pytriton.client.core.parameters import check_parameters
from pytriton.client.core.tensors import InferInput, InferRequestedOutput
from pytriton.client.exceptions import PyTritonClientInputError, PyTritonClientValueError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.telemetry.propagation import RequestSpan

_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*", re.ASCII)
_MICROSECONDS = 1_000_000
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a request, besides its inputs.

    Attributes:
        parameters: Parameters for the model: strings, numbers and booleans.
        headers: HTTP headers, or gRPC's metadata: strings and numbers.
        outputs: Names of the requested outputs; None for all.
        request_id: Name of the request in the server's logs and in the model.
        priority: 1 is the highest; 0 is the model's default.
        timeout_s: How long the response may take, instead of the client's ``inference_timeout_s``. It is passed to the
            server, which may drop a request that waits longer.
        progress: Show a progress bar while a batch is sent in parts.
    """

    parameters: Mapping[str, Any] | None = None
    headers: Mapping[str, Any] | None = None
    outputs: Sequence[str] | None = None
    request_id: str | None = None
    priority: int | None = None
    timeout_s: float | None = None
    progress: bool | None = None

    def without_inputs(self, config: TritonModelConfig, named: dict[str, Any]) -> Options:
        """Treats options as inputs if the model has inputs of these names, such as ``priority``.

        Args:
            config: The model.
            named: Inputs by name; such options are moved there.
        """
        for spec in config.inputs:
            if spec.name in _MAY_BE_INPUTS and getattr(self, spec.name) is not None:
                named[spec.name] = getattr(self, spec.name)
                self = dataclasses.replace(self, **{spec.name: None})
        return self


# Except those of nvidia-pytriton, where they are never inputs.
_MAY_BE_INPUTS = frozenset({"outputs", "request_id", "priority", "timeout_s", "progress"})


def options_of(
    parameters: Mapping[str, Any] | None,
    headers: Mapping[str, Any] | None,
    outputs: Sequence[str] | None,
    request_id: str | None,
    priority: int | None,
    timeout_s: float | None,
    progress: bool = False,
) -> Options | None:
    """Collects the options of a request; returns None if there are none, as for most requests.

    Raises:
        PyTritonClientInputError: A parameter is reserved.
    """
    if (
        parameters is None
        and headers is None
        and outputs is None
        and request_id is None
        and priority is None
        and timeout_s is None
        and progress is False
    ):
        return None
    if isinstance(parameters, Mapping):
        check_parameters(parameters)
    shown = None if progress is False else progress
    return Options(parameters, headers, outputs, request_id, priority, timeout_s, shown)


@dataclasses.dataclass(slots=True)
class EncodedRequest:
    """A request that has been checked.

    Attributes:
        arrays: The given inputs, with the batch dimension if the model batches.
        single: Whether to remove the batch dimension from outputs.
        settings: Arguments of the API's method ``infer``, except inputs, outputs and headers.
        headers: The user's headers.
        outputs: Names of the requested outputs; None for all.
        timeout_s: How long the response may take; None for the client's default.
        progress: Whether to show a progress bar while it is sent in parts.
        span: Its span, which is notified of the server if that is not known before.
    """

    arrays: Sequence[tuple[TensorSpec, Array]]
    single: bool
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Sequence[str] | None = None
    timeout_s: float | None = None
    progress: bool = False
    span: RequestSpan | None = None

    @property
    def rows(self) -> int:
        """Size of the batch; 0 without inputs."""
        return self.arrays[0][1].shape[0] if self.arrays else 0

    def slice(self, start: int, stop: int) -> EncodedRequest:
        """Returns the same request for some rows of the batch."""
        return dataclasses.replace(self, arrays=[(spec, array[start:stop]) for spec, array in self.arrays])


def make_request(
    config: TritonModelConfig,
    positional: Sequence[Any],
    named: dict[str, Any],
    options: Options | None,
    *,
    batch: bool,
    convert: bool,
) -> EncodedRequest:
    """Checks a request against the model.

    Args:
        config: The model.
        positional: Inputs in the model's order.
        named: Inputs by name.
        options: The options of the request.
        batch: Whether the inputs have the batch dimension.
        convert: Convert arrays of another dtype if no value can change.

    Raises:
        PyTritonClientInputError: The inputs do not fit the model.
        PyTritonClientValueError: An option cannot be sent.
        PyTritonClientModelDoesntSupportBatchingError: The model does not batch.
    """
    if options is not None:
        options = options.without_inputs(config, named)
    given = match(config, positional, named)
    arrays = arrays_of_batch(config, given, convert) if batch else arrays_of_sample(config, given, convert)
    single = not batch and config.max_batch_size > 0
    if options is None:
        return EncodedRequest(arrays, single)
    return EncodedRequest(
        arrays,
        single,
        settings=_settings(options),
        headers={name: _header(name, value) for name, value in _items("headers", options.headers)},
        outputs=_wanted_outputs(config, options.outputs),
        timeout_s=None if options.timeout_s is None else check_timeout("timeout_s", options.timeout_s),
        progress=bool(options.progress),
    )


def check_rows(config: TritonModelConfig, request: EncodedRequest) -> None:
    """Checks that a batch is not larger than the model accepts.

    Raises:
        PyTritonClientInputError: It is larger.
    """
    if not request.single and request.rows > config.max_batch_size > 0:
        raise PyTritonClientInputError(
            f"The batch has {request.rows} rows, and model {config.model_name!r} takes {config.max_batch_size} at "
            "once; FuturesModelClient and AsyncioModelClient send larger batches in parts."
        )


def tensors_of(request: EncodedRequest) -> list[InferInput]:
    """Creates the inputs of a request, with their contents."""
    return [tensor_of(spec, array) for spec, array in request.arrays]


def tensor_of(spec: TensorSpec, array: Array) -> InferInput:
    """Creates an input with an array's content."""
    return InferInput(spec.name, array.shape, spec.datatype.name).set_data_from_numpy(array)


def wanted_of(request: EncodedRequest) -> list[InferRequestedOutput] | None:
    """Creates the requested outputs; None for all."""
    if request.outputs is None:
        return None
    return [InferRequestedOutput(name) for name in request.outputs]


def response_of(
    result: Any,
    single: bool,
    elsewhere: Mapping[str, Callable[[str, Sequence[int]], Array]] = _NOTHING,
) -> dict[str, Array]:
    """Reads a response.

    Args:
        result: The transport's ``InferResult``.
        single: Remove the batch dimension.
        elsewhere: Functions that return the outputs whose content is not in the response, given datatype and shape.

    Returns:
        Arrays by the outputs' names.

    Raises:
        Exception: The content does not fit its declared size.
    """
    response = {}
    for index, (name, datatype, shape) in enumerate(result.outputs):
        array = elsewhere[name](datatype, shape) if name in elsewhere else result.array(index)
        response[name] = array[0] if single and array.shape[:1] == (1,) else array
    return response


def is_text(text: str) -> bool:
    """Returns whether a string can be sent; one with lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_token(access_token: Any) -> None:
    """Checks a server's token, without revealing it in errors.

    Raises:
        PyTritonClientValueError: It cannot be sent.
    """
    if access_token is not None and not (isinstance(access_token, str) and _HEADER_VALUE.fullmatch(access_token)):
        raise PyTritonClientValueError("access_token cannot be sent; give a string of printable ASCII characters.")


def check_load(config: Any, files: Any) -> None:
    """Checks a model's configuration and files, as `ModelClient.load_model` takes them.

    Raises:
        PyTritonClientInputError: They cannot be sent.
    """
    if config is not None and not _is_json_object(config):
        raise PyTritonClientInputError(
            f"config is {config!r}; give the model's configuration as JSON, such as json.dumps({{...}})."
        )
    for path, content in _items("files", files):
        if not isinstance(path, str) or not path.startswith("file:") or not isinstance(content, bytes | bytearray):
            raise PyTritonClientInputError(
                f"files has {path!r} with a value of type {type(content).__name__}; give contents as bytes, by names "
                "such as 'file:1/model.onnx'."
            )


def _is_json_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _settings(options: Options) -> dict[str, Any]:
    """Returns the arguments of the method ``infer`` that differ from their defaults."""
    settings: dict[str, Any] = {}
    parameters = {name: _parameter(name, value) for name, value in _items("parameters", options.parameters)}
    if parameters:
        settings["parameters"] = parameters
    if options.request_id is not None:
        if not isinstance(options.request_id, str) or not is_text(options.request_id):
            raise PyTritonClientValueError(f"request_id is {options.request_id!r}; give a string.")
        settings["request_id"] = options.request_id
    if options.priority is not None:
        settings["priority"] = _priority(options.priority)
    if options.timeout_s is not None:
        settings["timeout"] = max(1, int(check_timeout("timeout_s", options.timeout_s) * _MICROSECONDS))
    return settings


def _items(what: str, values: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    if values is not None and not isinstance(values, Mapping):
        raise PyTritonClientValueError(f"{what} is {values!r}; give a dictionary.")
    return () if values is None else values.items()


def _priority(priority: Any) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority < 1 << 32:
        raise PyTritonClientValueError(f"priority is {priority!r}; give 1 (highest) or more, or 0.")
    return priority


def _parameter(name: str, value: Any) -> str | int | float | bool:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
        raise PyTritonClientValueError(f"Parameter {name!r} is {value!r}, which does not fit into 64 bits.")
    if isinstance(name, str) and is_text(name) and isinstance(value, str | int | float) and is_text(str(value)):
        return value
    raise PyTritonClientValueError(f"Parameter {name!r} is {value!r}; give a string, a number or a boolean.")


def _header(name: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise PyTritonClientValueError(f"Header {name!r} has a name that cannot be sent; use letters, digits and '-'.")
    if not isinstance(value, str | int | float) or not _HEADER_VALUE.fullmatch(str(value)):
        raise PyTritonClientValueError(
            f"Header {name!r} is {value!r}; give a number, or a string of printable ASCII characters."
        )
    return str(value)


def _wanted_outputs(config: TritonModelConfig, outputs: Sequence[str] | None) -> Sequence[str] | None:
    if outputs is None:
        return None
    if not isinstance(outputs, Iterable):
        raise PyTritonClientValueError(f"outputs is {outputs!r}; give a list of names.")
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    known = {spec.name for spec in config.outputs}
    for name in names:
        if name not in known:
            has = ", ".join(map(str, config.outputs))
            raise PyTritonClientValueError(f"There is no output {name!r}: model {config.model_name!r} has {has}.")
    if not names:
        raise PyTritonClientValueError("No output is requested; omit outputs to get all.")
    return names
