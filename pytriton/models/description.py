"""The descriptions of bound models that `Triton.models` returns."""

from __future__ import annotations

import copy
import dataclasses

from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.model import BoundModel


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """One version of a bound model.

    Attributes:
        name: Its name.
        version: Its version.
        inputs: The inputs, in order; each has a name.
        outputs: The outputs, in order; each has a name.
        config: Batching and more; a copy.
        instances: Number of its inference callables.

    Examples:
        >>> for model in triton.models:  # doctest: +SKIP
        ...     print(model)
        Double v1: x FP32 (-1,) -> y FP32 (-1,)
    """

    name: str
    version: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    config: ModelConfig
    instances: int

    @classmethod
    def of(cls, model: BoundModel) -> ModelDescription:
        """Describes a bound model."""
        spec = model.spec
        return cls(spec.name, spec.version, spec.inputs, spec.outputs, copy.deepcopy(spec.config), model.instances)

    def __str__(self) -> str:
        """Describes it in one line."""
        inputs, outputs = (", ".join(map(_in_short, tensors)) for tensors in (self.inputs, self.outputs))
        instances = f" ({self.instances} instances)" if self.instances > 1 else ""
        return f"{self.name} v{self.version}: {inputs or 'no inputs'} -> {outputs}{instances}"


def _in_short(tensor: Tensor) -> str:
    return f"{tensor.name} {tensor.datatype.name} {tensor.shape}{' optional' if tensor.optional else ''}"
