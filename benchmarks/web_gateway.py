"""Serves the functions of `web_functions.py` through this project's gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from serve import parser, serve_command
from web_functions import IMAGE, IMAGE_SHAPE, STREAM, TINY, double, tokens
from workloads import MAX_BATCH_SIZE

from pytriton.decorators import batch, sample
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def _double(x: Any) -> dict[str, Any]:
    return {"y": double(x)}


@sample
def _tokens(count: Any) -> Iterator[dict[str, Any]]:
    for token in tokens(int(count[0, 0])):
        yield {"token": np.array([[token.encode()]])}


def _run(http_port: int, grpc_port: int, metrics_port: int) -> None:
    config = TritonConfig(
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        http_port=metrics_port,
        grpc_port=grpc_port,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        for name, shape in ((TINY, (-1,)), (IMAGE, IMAGE_SHAPE)):
            triton.bind(
                model_name=name,
                infer_func=_double,
                inputs=[Tensor(name="x", shape=shape, dtype=np.float32)],
                outputs=[Tensor(name="y", shape=shape, dtype=np.float32)],
                config=ModelConfig(max_batch_size=MAX_BATCH_SIZE),
            )
        triton.bind(
            model_name=STREAM,
            infer_func=_tokens,
            inputs=[Tensor(name="count", shape=(1,), dtype=np.int32)],
            outputs=[Tensor(name="token", shape=(1,), dtype=np.bytes_)],
            config=ModelConfig(max_batch_size=MAX_BATCH_SIZE, decoupled=True),
        )
        triton.serve(gateway=GatewayConfig(host="127.0.0.1", port=http_port))


def main() -> None:
    """Serves until standard input closes."""
    if sys.argv[1] == "--run":
        _run(*map(int, sys.argv[2:]))
        return
    options = parser(__doc__).parse_args()
    ports = [str(port) for port in (options.http_port, options.grpc_port, options.metrics_port)]
    serve_command(options.http_port, ["/health/ready"], [sys.executable, __file__, "--run", *ports])


if __name__ == "__main__":
    main()
