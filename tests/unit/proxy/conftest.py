"""Connections for models, without a server."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor

# Test modules are imported by their paths; what they share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from wiring import Wire


@pytest.fixture
def wire():
    """Makes connections for models."""
    made = []

    def make(inputs=None, outputs=None, **arguments):
        floats = {"shape": (-1,), "dtype": np.float32}
        inputs = inputs or [Tensor(name="x", **floats), Tensor(name="w", **floats, optional=True)]
        outputs = outputs or [Tensor(name="y", **floats), Tensor(name="z", **floats)]
        made.append(Wire(inputs, outputs, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def plain_wire(wire):
    """A connection for a model without batching."""
    return wire(config=ModelConfig(batching=False))
