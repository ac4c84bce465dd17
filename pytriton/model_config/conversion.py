"""Converts settings whose classes another package has declared, such as those of Triton Model Navigator."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from pytriton.model_config.common import DynamicBatcher, QueuePolicy, TimeoutAction
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor

_CLASSES = {each.__name__: each for each in (DynamicBatcher, ModelConfig, QueuePolicy, Tensor)}


def converted(value: Any) -> Any:
    """Returns the object of this package for a dataclass of another one with the same name and fields.

    ``PyTritonAdapter`` of Triton Model Navigator has classes of its own, so that it need not import this package.

    Args:
        value: A `Tensor`, `ModelConfig`, `DynamicBatcher` or `QueuePolicy`, of this package or not; anything else is
            returned as it is.

    Returns:
        The object; fields that the other class lacks have their defaults.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.
        PyTritonModelConfigError: Two fields contradict each other.
    """
    if isinstance(value, Mapping):
        return {key: converted(each) for key, each in value.items()}
    if isinstance(value, enum.Enum) and type(value).__name__ == TimeoutAction.__name__:
        return TimeoutAction.__members__.get(value.name, value)
    own = _CLASSES.get(type(value).__name__)
    if own is None or isinstance(value, own) or not dataclasses.is_dataclass(value):
        return value
    names = [field.name for field in dataclasses.fields(own) if field.init and hasattr(value, field.name)]
    try:
        return own(**{name: converted(getattr(value, name)) for name in names})
    except TypeError:  # it lacks a field that is required
        return value
