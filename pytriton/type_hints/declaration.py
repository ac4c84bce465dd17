"""``@model``: declares functions with type hints as models, for ``pytriton run`` or a `Triton` to serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, overload

from pytriton.decorators.ordering import FunctionT
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.model_spec import check_model_name
from pytriton.models.definition import ModelDefinition
from pytriton.type_hints.function import define

_ATTRIBUTE = "__pytriton_model__"


class Binder(Protocol):
    """Binds models: the part of `pytriton.triton.Triton` that is used here."""

    def bind(self, model_name: str, infer_func: ModelDefinition, *, model_version: int, strict: bool) -> None:
        """Binds a model."""


@dataclasses.dataclass(frozen=True)
class DeclaredModel:
    """A function that is declared as a model.

    Attributes:
        name: The model's name.
        definition: Its inputs, outputs and settings.
        version: Its version.
        strict: Whether shapes and dtypes of outputs are checked.
    """

    name: str
    definition: ModelDefinition
    version: int
    strict: bool

    def bind(self, triton: Binder) -> None:
        """Binds the model."""
        triton.bind(self.name, self.definition, model_version=self.version, strict=self.strict)


@overload
def model(function: FunctionT, /) -> FunctionT: ...


@overload
def model(
    *,
    name: str | None = None,
    max_batch_size: int | None = None,
    config: ModelConfig | None = None,
    model_version: int = 1,
    strict: bool = False,
) -> Callable[[FunctionT], FunctionT]: ...


def model(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    max_batch_size: int | None = None,
    config: ModelConfig | None = None,
    model_version: int = 1,
    strict: bool = False,
) -> Any:
    """Declares a function with type hints as a model, which ``pytriton run`` serves.

    The function stays as it is. `pytriton.triton.Triton.model` does the same for one server, at once.

    Args:
        function: The function.
        name: The model's name; that of the function by default.
        max_batch_size: Samples that a batch may have, for a function whose arrays have the dimension ``batch``.
        config: Further settings.
        model_version: The model's version.
        strict: Check the shapes and dtypes of outputs against the type hints.

    Raises:
        PyTritonBadParameterError: A type hint is missing, or does not describe a tensor.
        PyTritonModelConfigError: The settings contradict the type hints.

    Examples:
        >>> from jaxtyping import Float32
        >>> @model(max_batch_size=64)
        ... def double(x: Float32[np.ndarray, "batch n"]) -> Float32[np.ndarray, "batch n"]:
        ...     return x * 2
        >>> [each.name for each in declared_models({"double": double})]
        ['double']
    """

    def mark(marked: FunctionT) -> FunctionT:
        declared = declare(
            marked, name=name, max_batch_size=max_batch_size, config=config, model_version=model_version, strict=strict
        )
        setattr(marked, _ATTRIBUTE, declared)
        return marked

    return mark if function is None else mark(function)


def declare(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    max_batch_size: int | None = None,
    config: ModelConfig | None = None,
    model_version: int = 1,
    strict: bool = False,
) -> DeclaredModel:
    """Declares a function as a model; arguments and errors are those of `model`."""
    if not callable(function):
        raise PyTritonBadParameterError(
            f"@model was given {function!r:.200}, which is not a function; put it above one, and write its settings by "
            "name, as in @model(name='Name')."
        )
    if name is not None:
        check_model_name(name)
    definition = define(function, config=config, max_batch_size=max_batch_size)
    return DeclaredModel(name_of(function) if name is None else name, definition, model_version, strict)


def declared_models(namespace: Mapping[str, Any]) -> list[DeclaredModel]:
    """Returns the declared models among the objects of a namespace, such as a module's."""
    found = (getattr(each, _ATTRIBUTE, None) for each in namespace.values())
    return list({id(each): each for each in found if isinstance(each, DeclaredModel)}.values())


def name_of(function: Any) -> str:
    """Returns the name of a function, to name its model.

    Raises:
        PyTritonBadParameterError: The function has none.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        label = label_of(function)
        raise PyTritonBadParameterError(
            f"{label[0].upper()}{label[1:]} has no name for its model; give one: bind('name', function)."
        )
    return name


def label_of(function: Any) -> str:
    """Returns how messages refer to a callable, ignoring wrappers around it."""
    name = getattr(function, "__name__", None)
    if name == "<lambda>":
        return "a lambda"
    return f"the function {name}" if isinstance(name, str) else f"an object of {type(function).__name__}"
