"""A model's inputs and outputs, prepared for the hot path."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.model_config.model_spec import ModelSpec

LOGGER = logging.getLogger(__name__)


class OutputSignature(NamedTuple):
    """The declaration of one output.

    ``rank`` and ``shape`` include the batch dimension (-1) if the model batches. ``is_plain`` means that only the dtype
    and the rank of an array must be checked.
    """

    name: str
    code: int
    dtype: np.dtype[Any]
    rank: int
    shape: tuple[int, ...]
    is_plain: bool


class Signature:
    """The declaration of a model, as a worker needs it.

    Attributes:
        spec: The specification of the bound model.
        model: The model's name.
        batching: Whether the first dimension of every tensor is the batch.
        strict: Whether outputs are refused that have other dimensions or another dtype than declared.
        loose: Whether outputs may be missing, and are sent unchecked.
        inputs: Names of the inputs, in order.
        scalar_inputs: Positions of the inputs without dimensions, which have a dimension of size 1 in Triton.
        outputs: The outputs, in order.
        output_index: Position of each output by name.
        has_warned: Whether a deviation was logged: others are not, so nothing needs to look for them.
    """

    def __init__(self, spec: ModelSpec, *, loose: bool = False) -> None:
        self.loose = loose
        self.has_warned = False
        self.spec = spec
        self.model = spec.name
        self.batching = spec.config.batching
        self.strict = spec.strict
        self.inputs = [str(tensor.name) for tensor in spec.inputs]
        self.scalar_inputs = frozenset(
            index for index, tensor in enumerate(spec.inputs) if not self.batching and tensor.shape == ()
        )
        batch_shape = (-1,) if self.batching else ()
        self.outputs = [
            OutputSignature(
                str(tensor.name),
                tensor.datatype.code,
                DTYPE_BY_CODE[tensor.datatype.code],
                len(batch_shape) + len(tensor.shape),
                batch_shape + tuple(tensor.shape),
                not (self.loose or self.strict) and bool(batch_shape + tuple(tensor.shape)),
            )
            for tensor in spec.outputs
        ]
        self.output_index = {output.name: index for index, output in enumerate(self.outputs)}

    def warn(self, problem: str) -> None:
        """Logs, once per model, a deviation that would be refused with ``strict=True``."""
        if not self.has_warned:
            self.has_warned = True
            LOGGER.warning("Model %r: %s Logged once; bind(..., strict=True) makes it an error.", self.model, problem)
