"""Serves a function in pure Python on several cores, until Ctrl-C: ``python examples/process_instances/server.py``."""

from __future__ import annotations

import argparse
import logging
import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

MODEL_NAME = "Primes"


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


# Called once in each process. A model would be loaded here.
def make() -> Any:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.info("Counting primes in process %d.", os.getpid())

    @batch
    def count_primes(limit: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        counts = [sum(map(is_prime, range(row[0] + 1))) for row in limit.tolist()]
        return {"count": np.array(counts, np.int64).reshape(-1, 1), "process": np.full((len(limit), 1), os.getpid())}

    return count_primes


def bind(triton: Triton, processes: int) -> None:
    # Without processes, the same number of threads in this one, for comparison.
    instances = [ProcessInstance(make)] * processes if processes else [make()] * (os.cpu_count() or 1)
    triton.bind(
        model_name=MODEL_NAME,
        infer_func=instances,
        inputs=[Tensor(name="limit", dtype=np.int64, shape=(1,))],
        outputs=[Tensor(name="count", dtype=np.int64, shape=(1,)), Tensor(name="process", dtype=np.int64, shape=(1,))],
        # In pure Python, a batch takes as long as its requests one after the other.
        config=ModelConfig(max_batch_size=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a function in pure Python on several cores.")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="how many; 0 for threads in this process (default: cores)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Triton() as triton:
        bind(triton, arguments.processes)
        triton.serve()


if __name__ == "__main__":
    main()
