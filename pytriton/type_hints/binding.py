"""What `Triton.bind` is given, resolved to a name and a definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.decorators.ordering import settings_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonBindError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import InferenceSource, ModelDefinition
from pytriton.type_hints.declaration import name_of
from pytriton.type_hints.function import define


def resolve(
    model_name: str | Callable[..., Any],
    infer_func: InferenceSource | Sequence[InferenceSource] | ModelDefinition | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
) -> tuple[str, ModelDefinition]:
    """Returns the model's name, and its definition, for which type hints are read where tensors are not given.

    Args:
        model_name: The name; or the function, of which the model then has its name.
        infer_func: The function, functions or definition.
        inputs: In place of those of the definition or the type hints.
        outputs: In place of those of the definition or the type hints.
        config: In place of that of the definition.

    Raises:
        PyTritonBadParameterError: The function is missing, or its tensors are neither given nor in its type hints.
        PyTritonModelConfigError: The settings contradict the type hints.
    """
    if infer_func is None and callable(model_name):
        infer_func = model_name
        model_name = name_of(infer_func)
    if infer_func is None or callable(model_name):
        raise PyTritonBindError(f"Model {model_name!r}: infer_func is {infer_func!r}; write bind('name', function).")
    if isinstance(infer_func, ModelDefinition):
        given: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "config": config}
        return model_name, dataclasses.replace(
            infer_func, **{name: value for name, value in given.items() if value is not None}
        )
    config = config or _decorated_config(infer_func)
    if inputs is not None and outputs is not None:
        return model_name, ModelDefinition(infer_func, inputs, outputs, config)
    try:
        return model_name, define(infer_func, inputs=inputs, outputs=outputs, config=config)
    except PyTritonBadParameterError as error:
        raise PyTritonBadParameterError(f"Model {model_name!r}: {error.message}") from error


def _decorated_config(infer_func: InferenceSource | Sequence[InferenceSource]) -> ModelConfig | None:
    """Returns the settings that the decorators of the first instance's function were given."""
    first = infer_func if not isinstance(infer_func, Sequence) else next(iter(infer_func), None)
    settings = settings_of(first) if callable(first) else {}
    return ModelConfig(**settings) if settings else None
