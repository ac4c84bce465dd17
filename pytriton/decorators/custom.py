"""Helpers for custom decorators: the model and the context of a call, and its outputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.context import TritonContext, current_context
from pytriton.proxy.types import Array

InputNames = list[str]
"""Names of inputs."""
InferenceRequest = dict[str, Array]
"""The inputs of a request by name."""
InferenceRequests = list[InferenceRequest] | tuple[InferenceRequest, ...]
"""The requests of a batch."""
InferenceResult = dict[str, Array]
"""The outputs of a response by name."""
InferenceResults = list[InferenceResult] | tuple[InferenceResult, ...]
"""The responses to the requests of a batch."""


def get_triton_context(wrapped: Any = None, instance: Any = None) -> TritonContext:
    """Returns the context of the call in progress.

    Args:
        wrapped: The function that the custom decorator wraps; ignored, as the call in progress determines the context.
        instance: The object whose method it is; ignored as well.

    Raises:
        PyTritonContextError: No call by the server is in progress.

    Examples:
        >>> @wrapt.decorator  # doctest: +SKIP
        ... def timed(wrapped, instance, args, kwargs):
        ...     model = get_triton_context(wrapped, instance).model_config.name
        ...     with histogram.labels(model).time():
        ...         return wrapped(*args, **kwargs)
    """
    return current_context("get_triton_context")


def get_model_config(wrapped: Any = None, instance: Any = None) -> ModelSpec:
    """Returns the model of the call in progress; arguments and errors are those of `get_triton_context`."""
    return get_triton_context(wrapped, instance).model_config


def get_inference_request_batch_size(inference_request: Mapping[str, Array]) -> int:
    """Returns the number of rows of a request, which is that of its first input.

    Examples:
        >>> get_inference_request_batch_size({"x": np.ones((3, 2))})
        3
    """
    return int(next(iter(inference_request.values())).shape[0])


def convert_output(
    outputs: Mapping[str, Array] | Sequence[Array],
    wrapped: Any = None,
    instance: Any = None,
    model_config: ModelSpec | TritonModelConfig | None = None,
) -> dict[str, Array]:
    """Returns the outputs of a function by name.

    Args:
        outputs: By name, or as a list or tuple in the order of the model's outputs.
        wrapped: As for `get_triton_context`.
        instance: As for `get_triton_context`.
        model_config: The model; that of the call in progress by default.

    Raises:
        PyTritonValidationError: Their number is not that of the model's, they have another type, or no call is in
            progress.
    """
    if isinstance(outputs, dict):
        return outputs
    if not isinstance(outputs, list | tuple):
        raise PyTritonValidationError(
            f"outputs are of type {type(outputs).__name__}; return a dictionary by name, or a list or tuple"
        )
    model = get_model_config(wrapped, instance) if model_config is None else model_config
    declared: Sequence[Tensor | TensorSpec] = model.outputs
    if len(outputs) != len(declared):
        raise PyTritonValidationError(f"there are {len(outputs)} outputs, but the model has {len(declared)}")
    return {cast("str", spec.name): array for spec, array in zip(declared, outputs, strict=True)}
