"""Configurations of models with warm-up requests."""

from __future__ import annotations

import numpy as np

from pytriton.model_config import ModelConfig
from pytriton.model_config.common import ModelWarmup, WarmupInput

ZEROS = WarmupInput(np.float32, (2,), zero_data=True)


def warm(*warmups, **settings):
    """The configuration of a model with these warm-ups."""
    return ModelConfig(model_warmup=list(warmups), **settings)


def once(x=ZEROS, name="sample", batch_size=1, count=1, **others):
    return ModelWarmup(name, batch_size, {"x": x, **others}, count)


WARM = warm(once())
