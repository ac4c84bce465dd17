"""Serve a model that streams; report as JSON lines on stdout how long getting ready and stopping took.

Each response is 16 bytes: four float32, the first of which counts. The model ``batch`` uses only the interface that
this project shares with nvidia-pytriton 0.7.0; ``generator`` and ``async`` are what users of this project may write
instead.
The script serves until its standard input closes, which also ends it when whoever started it dies.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from serve_identity import report, report_stream, unrestricted, wait_until_ready

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

_SIZE = 4


@batch
def _batch(x: Any) -> Iterator[dict[str, Any]]:
    for number in range(int(x[0, 0])):
        yield {"y": np.full((len(x), _SIZE), number, np.float32)}


def _generator(requests: list[Any]) -> Iterator[list[dict[str, Any]]]:
    for number in range(int(requests[0]["x"][0, 0])):
        yield [{"y": np.full((1, _SIZE), number, np.float32)} for _ in requests]


async def _async(requests: list[Any]) -> AsyncIterator[list[dict[str, Any]]]:
    for number in range(int(requests[0]["x"][0, 0])):
        yield [{"y": np.full((1, _SIZE), number, np.float32)} for _ in requests]


_MODELS = {"batch": _batch, "generator": _generator, "async": _async}


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    parser.add_argument("--model", choices=_MODELS, required=True)
    parser.add_argument("--max-batch-size", type=int, default=64)
    parser.add_argument("--max-in-flight", type=int, help="of this project's models; left out by default")
    options = parser.parse_args()

    stream = report_stream()
    limits = {} if options.max_in_flight is None else {"max_in_flight": options.max_in_flight}
    started = time.perf_counter()
    triton = Triton(
        config=TritonConfig(
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            metrics_port=options.metrics_port,
        ),
        **unrestricted(),
    )
    triton.bind(
        model_name=options.model,
        infer_func=_MODELS[options.model],
        inputs=[Tensor(name="x", shape=(_SIZE,), dtype=np.float32)],
        outputs=[Tensor(name="y", shape=(_SIZE,), dtype=np.float32)],
        config=ModelConfig(decoupled=True, max_batch_size=options.max_batch_size, **limits),
    )
    triton.run()
    wait_until_ready(options.http_port, options.model)
    report(stream, "ready", started)

    sys.stdin.read()

    started = time.perf_counter()
    triton.stop()
    report(stream, "stopped", started)


if __name__ == "__main__":
    main()
