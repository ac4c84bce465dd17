"""Fixtures of the decorators' tests: a model that seems to be served, and short ways to write arrays."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton.model_config import DynamicBatcher, ModelConfig, ModelSpec, Tensor
from pytriton.proxy.context import MODEL

sys.path.insert(0, str(Path(__file__).parent))  # for generators.py

FLOATS = {"shape": (-1,), "dtype": np.float32}
INPUTS = (Tensor(name="x", **FLOATS),)


@pytest.fixture
def model():
    """Makes a model, and pretends that it is being called by its worker."""
    tokens = []

    def make(inputs=INPUTS, *, preferred=None, **config):
        if preferred is not None:
            config["batcher"] = DynamicBatcher(preferred_batch_size=preferred)
        spec = ModelSpec.create("M", inputs, [Tensor(name="y", **FLOATS)], version=3, config=ModelConfig(**config))
        tokens.append(MODEL.set(spec))
        return spec

    yield make
    for token in reversed(tokens):
        MODEL.reset(token)
