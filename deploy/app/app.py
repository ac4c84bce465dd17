import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

triton = Triton()


@batch
def double(x):
    return {"y": 2 * x}


triton.bind(
    "Double",
    double,
    inputs=[Tensor((-1,), np.float32, "x")],
    outputs=[Tensor((-1,), np.float32, "y")],
    config=ModelConfig(max_batch_size=64),
)
