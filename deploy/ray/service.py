"""The applications of serve.yaml: a pool of Tritons, and the gateway in front of it."""

import numpy as np

import pytriton.ray
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor


@batch
def double(x):
    return {"y": 2 * x}


def build(triton):
    triton.bind(
        "Double",
        double,
        inputs=[Tensor((-1,), np.float32, "x")],
        outputs=[Tensor((-1,), np.float32, "y")],
        config=ModelConfig(max_batch_size=64),
    )


def app(arguments):
    """Returns the pool; the arguments are those of serve.yaml."""
    return pytriton.ray.application(build, **arguments)
