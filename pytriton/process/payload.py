"""The pickled payload from which another process creates an inference callable: model, factory and arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytriton.decorators.ordering import check_infer_func
from pytriton.decorators.parameters import check_parameters
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import FactoryInstance
from pytriton.process.main_names import install
from pytriton.process.pickling import pickled_with_names, unpickled_with_names
from pytriton.proxy.worker.execution_mode import check_callable


@dataclasses.dataclass(frozen=True)
class FactorySpec:
    """Specification of an instance that a factory creates elsewhere, captured in `Triton.bind`.

    Attributes:
        model: The model.
        number: The index of the instance, from 0.
        payload: The model, the factory and its arguments, pickled.
    """

    model: ModelSpec
    number: int
    payload: bytes

    @property
    def name(self) -> str:
        """Names the instance in messages."""
        return f"model {self.model.name!r} (instance {self.number})"


def payload_of(instance: FactoryInstance, spec: ModelSpec, number: int, place: str) -> bytes:
    """Returns the model, the factory of an instance and its arguments, pickled.

    Args:
        instance: The instance.
        spec: The model.
        number: The index of the instance, from 0.
        place: Its destination, for the message.

    Raises:
        PyTritonBadParameterError: The factory or one of its arguments cannot be sent.
    """
    try:
        return pickled_with_names((spec, instance.factory, tuple(instance.args), dict(instance.kwargs)))
    except Exception as error:
        raise PyTritonBadParameterError(
            f"Model {spec.name!r}: instance {number} cannot be sent to its {place}: {type(error).__name__}: {error}; "
            "remove it from the factory, its arguments and the variables that it uses, and create it in the factory."
        ) from error


def created(payload: bytes, folder: Path | None = None) -> tuple[ModelSpec, Callable[..., Any]]:
    """Calls the factory of a payload; returns the model and the inference callable, after checking that they match.

    Args:
        payload: The payload.
        folder: The folder of this worker process, whose ``__main__`` then has what that of the program has.

    Raises:
        PyTritonError: The callable does not fit the model.
        Exception: The factory failed.
    """
    names, size, (spec, factory, args, kwargs) = unpickled_with_names(payload)
    if folder is not None:
        install(names, payload[:size], folder)
    infer_func = factory(*args, **kwargs)
    check_callable(infer_func, spec)
    check_infer_func(infer_func, spec)
    check_parameters(infer_func, spec)
    return spec, infer_func
