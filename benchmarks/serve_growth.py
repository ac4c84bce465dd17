"""Serve what a curve of `growth.py` counts: models, instances, processes, or models that call one another."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from serve import model_names, parser
from serve_pytriton import serve_triton
from workloads import MAX_BATCH_SIZE

from pytriton.decorators import batch, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

_LOOPS = 200_000


@batch
def _identity(x: Any) -> list[Any]:
    return [x]


def _unchanged(requests: list[Any]) -> list[Any]:
    return [{"y": request["x"]} for request in requests]


def _make_work() -> Callable[..., Any]:
    """Make a function that keeps Python busy for some milliseconds."""

    def work(requests: list[Any]) -> list[Any]:
        total = 0
        for number in range(_LOOPS):
            total += number & 3
        return [{"y": request["x"]} for request in requests]

    return work


def _caller(following: str) -> Callable[..., Any]:
    """Make a function that calls another model."""

    @batch
    @triton_context
    def infer(x: Any, triton_context: Any) -> dict[str, Any]:
        return {"y": triton_context.infer(following, {"x": x})["y"]}

    return infer


def _bind_tiny(triton: Triton, model: str, infer_func: Any, max_batch_size: int = MAX_BATCH_SIZE) -> None:
    inputs, outputs = ([Tensor(name=name, shape=(16,), dtype=np.float32)] for name in "xy")
    triton.bind(model, infer_func, inputs, outputs, config=ModelConfig(max_batch_size=max_batch_size))


def _bind_bytes(triton: Triton, model: str) -> None:
    inputs, outputs = ([Tensor(name=name, shape=(-1,), dtype=np.uint8)] for name in "xy")
    triton.bind(model, _unchanged, inputs, outputs, config=ModelConfig(batching=False))


def _write_baseline(repository: Path, what: str, count: int) -> None:
    """Write a model like the bound one, whose backend is the baseline."""
    (repository / "baseline" / "1").mkdir(parents=True)
    datatype, dims, max_batch_size = ("UINT8", -1, 0) if what == "bytes" else ("FP32", 16, MAX_BATCH_SIZE)
    (repository / "baseline" / "config.pbtxt").write_text(
        'backend: "baseline"\n'
        f"max_batch_size: {max_batch_size}\n"
        f'input [{{ name: "x" data_type: TYPE_{datatype} dims: [{dims}] }}]\n'
        f'output [{{ name: "y" data_type: TYPE_{datatype} dims: [{dims}] }}]\n'
        f"instance_group [{{ count: {count if what == 'instances' else 1} kind: KIND_CPU }}]\n"
        + ("dynamic_batching {}\n" if max_batch_size else "")
    )


def main() -> None:
    """Serve until standard input closes."""
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=["models", "instances", "processes", "chain", "bytes"])
    arguments.add_argument("--count", type=int, default=1)
    arguments.add_argument("--backends", type=Path, help="folder with the baseline's backend, which is served, too")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as repository:
        _serve(options, Path(repository))


def _serve(options: argparse.Namespace, repository: Path) -> None:
    what, count = options.what, options.count
    models = model_names("tiny", count if what in ("models", "chain") else 1)
    settings: dict[str, Any] = {}
    if options.backends:
        _write_baseline(repository, what, count)
        settings = {"model_repository": repository, "backend_directory": options.backends}

    def bind(triton: Triton, model: str) -> None:
        position = models.index(model)
        if what == "bytes":
            _bind_bytes(triton, model)
        elif what == "processes":
            _bind_tiny(triton, model, [ProcessInstance(_make_work)] * count, max_batch_size=1)
        elif what == "instances":
            _bind_tiny(triton, model, [_identity] * count)
        elif what == "chain" and position + 1 < count:
            _bind_tiny(triton, model, _caller(models[position + 1]))
        else:
            _bind_tiny(triton, model, _identity)

    serve_triton(options, models, bind, settings)


if __name__ == "__main__":
    main()
