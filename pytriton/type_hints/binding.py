"""Resolves the arguments of `Triton.bind` to a name and a definition."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytriton.decorators.ordering import settings_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonBindError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import InferenceSource, ModelDefinition
from pytriton.process.instance import FactoryInstance
from pytriton.type_hints.declaration import label_of, name_of
from pytriton.type_hints.function import define

LOGGER = logging.getLogger(__name__)


def resolve(
    model_name: str | Callable[..., Any],
    infer_func: InferenceSource | Sequence[InferenceSource] | ModelDefinition | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
) -> tuple[str, ModelDefinition]:
    """Returns the model's name and definition; tensors that are not given are read from type hints.

    Args:
        model_name: The name; or the function, whose name the model then has.
        infer_func: The function, functions or definition.
        inputs: Replace those of the definition or the type hints.
        outputs: Replace those of the definition or the type hints.
        config: Replaces that of the definition.

    Raises:
        PyTritonBadParameterError: The function is missing, or its tensors are neither given nor in its type hints.
        PyTritonModelConfigError: The settings contradict the type hints.
    """
    if infer_func is None and callable(model_name):
        infer_func = model_name
        model_name = name_of(infer_func)
    if callable(model_name):
        raise PyTritonBindError(
            f"Model name is {label_of(model_name)}; write the name before the function: bind('name', function, "
            "inputs=..., outputs=...)."
        )
    where = f"Model {model_name!r}"
    if infer_func is None:
        raise PyTritonBindError(f"{where}: infer_func is None; write bind('name', function).")
    if isinstance(infer_func, ModelDefinition):
        given: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "config": config}
        definition = dataclasses.replace(
            infer_func, **{name: value for name, value in given.items() if value is not None}
        )
        return model_name, dataclasses.replace(definition, infer_func=_checked(definition.infer_func, where))
    infer_func = _checked(infer_func, where)
    config = _decorated_config(infer_func, config, where)
    if inputs is not None and outputs is not None:
        return model_name, ModelDefinition(infer_func, inputs, outputs, config)
    try:
        return model_name, define(infer_func, inputs=inputs, outputs=outputs, config=config)
    except PyTritonBadParameterError as error:
        adapter = _adapter_for(getattr(infer_func, "__self__", infer_func))
        if adapter is not None:
            raise PyTritonBadParameterError(
                f"{where}: infer_func is {_shown(infer_func)}; {_in_place_of_model(adapter)}, or inputs=[Tensor(...)] "
                "and outputs=[Tensor(...)] for a function with @batch that calls it."
            ) from error
        raise PyTritonBadParameterError(f"{where}: {_without_one(inputs, outputs)}{error.message}") from error


def _checked(
    infer_func: InferenceSource | Sequence[InferenceSource], where: str
) -> InferenceSource | Sequence[InferenceSource]:
    """Returns an inference callable, or a list with at least one."""
    if callable(infer_func) or isinstance(infer_func, FactoryInstance):
        return infer_func
    single = not isinstance(infer_func, Iterable) or isinstance(infer_func, str | bytes | Mapping | Iterator)
    if single or _adapter_for(infer_func):  # ensembles of scikit-learn are iterable
        raise PyTritonBindError(
            f"{where}: infer_func is {_shown(infer_func)}, which is not callable; {_in_place_of(infer_func)}."
        )
    instances = list(infer_func)
    if not instances:
        raise PyTritonBadParameterError(
            f"{where}: infer_func is an empty list; pass a function, or a list with one for each instance."
        )
    for number, instance in enumerate(instances, start=1):
        if isinstance(instance, Tensor):
            raise PyTritonBadParameterError(
                f"{where}: infer_func is a list of tensors; write bind('name', function, inputs=..., outputs=...)."
            )
        if not callable(instance) and not isinstance(instance, FactoryInstance):
            raise PyTritonBindError(
                f"{where}: infer_func has {instance!r:.200} as number {number}, which is not callable; pass a function "
                "for each instance."
            )
    return instances


def _in_place_of(infer_func: object) -> str:
    """Says what to bind in place of something that is not callable."""
    adapter = _adapter_for(infer_func)
    if adapter is not None:
        return _in_place_of_model(adapter)
    called = isinstance(infer_func, Awaitable | Mapping | Iterator)  # the result of a call
    itself = " itself, without calling it" if called else ""
    return f"pass a function{itself}, or a list with one for each instance"


def _in_place_of_model(adapter: str) -> str:
    return f"pass {adapter}(...) of pytriton.adapters, which serves such a model"


def _adapter_for(model: object) -> str | None:
    """Returns the adapter for a model of another library; None for anything else."""
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        return "sklearn_model"
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
    if ("torch", "Module") in names:
        return "torch_model"
    if ("transformers", "Pipeline") in names:
        return "transformers_model"
    return "onnx_model" if any(library == "onnxruntime" for library, _ in names) else None


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:200]  # the repr of a pipeline of scikit-learn has several lines


def _without_one(inputs: object, outputs: object) -> str:
    """Returns the beginning of an error message if only inputs or only outputs are given."""
    if (inputs is None) == (outputs is None):
        return ""
    missing, given = ("inputs", "outputs") if inputs is None else ("outputs", "inputs")
    return f"there are {given}, but no {missing}; pass {missing}=[Tensor(...)], or complete the type hints: "


def _decorated_config(
    infer_func: InferenceSource | Sequence[InferenceSource], config: ModelConfig | None, where: str
) -> ModelConfig | None:
    """Returns the given settings, or else those passed to the decorators of the first instance's function."""
    first = infer_func[0] if isinstance(infer_func, Sequence) else infer_func
    settings = settings_of(first) if callable(first) else {}
    if not config:
        return ModelConfig(**settings) if settings else None
    unlike = [name for name, value in settings.items() if getattr(config, name, value) != value]
    if unlike:
        LOGGER.warning(
            "%s: the settings of @batch are not used, because bind was given config=..., whose %s differs; set it "
            "in one place.",
            where,
            " and ".join(unlike),
        )
    return config
