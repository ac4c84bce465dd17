"""Serve a model that streams, for `streams.py`.

Each response is 16 bytes: four float32, the first of which counts. The model ``batch`` uses only the interface that
this project shares with nvidia-pytriton 0.7.0; ``generator`` and ``async`` are what users of this project may write
instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from serve import parser
from serve_pytriton import serve_triton

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

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
    arguments = parser(__doc__)
    arguments.add_argument("--model", choices=_MODELS, required=True)
    arguments.add_argument("--max-batch-size", type=int, default=64)
    arguments.add_argument("--max-in-flight", type=int, help="of this project's models; left out by default")
    options = arguments.parse_args()
    limits = {} if options.max_in_flight is None else {"max_in_flight": options.max_in_flight}

    def bind(triton: Triton, model: str) -> None:
        triton.bind(
            model_name=model,
            infer_func=_MODELS[model],
            inputs=[Tensor(name="x", shape=(_SIZE,), dtype=np.float32)],
            outputs=[Tensor(name="y", shape=(_SIZE,), dtype=np.float32)],
            config=ModelConfig(decoupled=True, max_batch_size=options.max_batch_size, **limits),
        )

    serve_triton(options, [options.model], bind)


if __name__ == "__main__":
    main()
