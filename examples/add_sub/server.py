"""Serves a model that adds and subtracts, until Ctrl-C: ``python examples/add_sub/server.py``."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton

MODEL_NAME = "AddSub"


# Triton combines the requests of many clients into one batch; the function sees that batch as one array per input.
@batch
def add_sub(a: NDArray[np.float32], b: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    return {"add": a + b, "sub": a - b}


def bind(triton: Triton) -> None:
    triton.bind(
        model_name=MODEL_NAME,
        infer_func=add_sub,
        # Shapes are those of a sample, without the batch dimension; -1 is any size.
        inputs=[
            Tensor(name="a", dtype=np.float32, shape=(-1,)),
            Tensor(name="b", dtype=np.float32, shape=(-1,)),
        ],
        outputs=[
            Tensor(name="add", dtype=np.float32, shape=(-1,)),
            Tensor(name="sub", dtype=np.float32, shape=(-1,)),
        ],
        # A request waits at most 0.1 ms for others to join its batch.
        config=ModelConfig(max_batch_size=128, batcher=DynamicBatcher(max_queue_delay_microseconds=100)),
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Triton() as triton:
        bind(triton)
        triton.serve()


if __name__ == "__main__":
    main()
