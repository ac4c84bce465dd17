"""The definition of a model: an inference callable with its inputs, outputs and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.process.instance import FactoryInstance

InferenceSource = Callable[..., Any] | FactoryInstance


@dataclasses.dataclass(frozen=True)
class ModelDefinition:
    """An inference callable together with its inputs, outputs and settings, for `Triton.bind`.

    Adapters for other libraries return one, and so does `pytriton.type_hints.define` for a function with type hints.

    Args:
        infer_func: As for `Triton.bind`: a callable, a `ProcessInstance`, or a list with one for each instance.
        inputs: The inputs, in order.
        outputs: The outputs, in order.
        config: Batching and more; ``ModelConfig()`` by default.

    Examples:
        >>> @batch
        ... def double(x):
        ...     return {"y": x * 2}
        >>> x, y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy")
        >>> definition = ModelDefinition(double, [x], [y], ModelConfig(max_batch_size=64))
        >>> triton.bind("Double", definition)  # doctest: +SKIP
    """

    infer_func: InferenceSource | Sequence[InferenceSource]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    config: ModelConfig | None = None
