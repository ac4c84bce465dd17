"""Serve a workload with `Triton.bind`, through the interface that this project shares with nvidia-pytriton 0.7.0."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from serve import model_names, ready_paths, serve, workload_parser
from workloads import MAX_BATCH_SIZE, STREAM, WORKLOADS

import pytriton.triton
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def serve_triton(
    options: argparse.Namespace,
    models: list[str],
    bind: Callable[[Triton, str], None],
    settings: dict[str, Any] | None = None,
) -> None:
    """Serve with a `Triton` in this process.

    Args:
        options: the ports.
        models: names of the models.
        bind: binds a model.
        settings: more of the server's settings.
    """

    def start() -> tuple[int, Callable[[], object]]:
        ports = {name: getattr(options, name) for name in ("http_port", "grpc_port", "metrics_port")}
        config = TritonConfig(**ports, **(settings or {}))
        triton = Triton(config=config, **_unrestricted())
        for model in models:
            bind(triton, model)
        triton.run()
        return os.getpid(), triton.stop

    serve(options.http_port, ready_paths(models), start)


def _unrestricted() -> dict[str, Any]:
    """Open the statistics endpoint, which perf_analyzer reads, if it requires an access token."""
    security_config = getattr(pytriton.triton, "TritonSecurityConfig", None)
    return {} if security_config is None else {"security_config": security_config(restricted_endpoints=[])}


@batch
def _stream(count: Any) -> Iterator[dict[str, Any]]:
    for number in range(int(count[0, 0])):
        yield {"y": np.full((len(count), 1), number, np.int32)}


def _callable(workload: str) -> Any:
    function = WORKLOADS[workload].function()

    @batch
    def infer(x: Any) -> list[Any]:
        return [function(x)]

    return infer


def main() -> None:
    """Serve until standard input closes."""
    options = workload_parser(__doc__).parse_args()

    def bind(triton: Triton, model: str) -> None:
        if options.workload == STREAM:
            triton.bind(
                model_name=model,
                infer_func=[_stream] * options.instances,
                inputs=[Tensor(name="count", shape=(1,), dtype=np.int32)],
                outputs=[Tensor(name="y", shape=(1,), dtype=np.int32)],
                config=ModelConfig(max_batch_size=MAX_BATCH_SIZE, decoupled=True),
            )
            return
        workload = WORKLOADS[options.workload]
        triton.bind(
            model_name=model,
            infer_func=[_callable(workload.name) for _ in range(options.instances)],
            inputs=[Tensor(name="x", shape=workload.shape, dtype=workload.dtype)],
            outputs=[Tensor(name="y", shape=workload.output_shape, dtype=workload.dtype)],
            config=ModelConfig(max_batch_size=MAX_BATCH_SIZE),
        )

    serve_triton(options, model_names(options.workload, options.models), bind)


if __name__ == "__main__":
    main()
