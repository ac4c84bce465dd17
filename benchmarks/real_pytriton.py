"""Serve a model of `real_functions.py` with PyTriton: an instance for each worker."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from real_functions import MODELS
from real_servers import real_parser
from serve_pytriton import serve_triton

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton


def make_callable(name: str) -> Any:
    """Load a model, in the process that computes it."""
    model = MODELS[name]
    function = model.load()

    @batch
    def infer(x: Any) -> list[Any]:
        outputs = function(x if model.shape is not None else [each.item() for each in x])
        if model.output_shape is None:
            return [np.array([[text.encode()] for text in outputs], np.object_)]
        return [np.asarray(outputs, model.output_dtype).reshape(len(x), *(model.output_shape or (1,)))]

    return infer


def main() -> None:
    """Serve until standard input closes."""
    arguments = real_parser(__doc__)
    arguments.add_argument("--no-batches", action="store_true", help="each request alone, for comparison")
    arguments.add_argument("--queue-delay-us", type=int, default=0, help="how long a batch waits for more requests")
    arguments.add_argument("--threads", action="store_true", help="instances are threads, not processes")
    options = arguments.parse_args()
    serve_triton(options, [options.model], lambda triton, name: _bind(triton, name, options))


def _bind(triton: Triton, name: str, options: argparse.Namespace) -> None:
    model = MODELS[name]
    instance = make_callable(name) if options.threads else ProcessInstance(make_callable, args=[name])
    batcher = DynamicBatcher(max_queue_delay_microseconds=options.queue_delay_us)
    output = bytes if model.output_shape is None else model.output_dtype
    triton.bind(
        model_name=name,
        infer_func=[instance] * options.workers,
        inputs=[Tensor(name="x", shape=model.shape or (1,), dtype=bytes if model.shape is None else model.dtype)],
        outputs=[Tensor(name="y", shape=model.output_shape or (1,), dtype=output)],
        config=ModelConfig(max_batch_size=model.max_batch_size, batcher=None if options.no_batches else batcher),
    )


if __name__ == "__main__":
    main()
