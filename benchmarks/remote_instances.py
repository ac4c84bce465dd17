"""Measure instances of a model in Ray actors beside a local function: a tiny one, and one that takes 20 ms per batch.

Writes a Markdown table to stdout; progress goes to stderr. One machine; the models are loaded for the whole run and
measured in turn. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from load import measure_http
from report import heading, markdown_table
from workloads import WORKLOADS

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

_CONCURRENCIES = (1, 32)
_PLACES = {"local": "a function", "remote": "RemoteInstance × 1", "remotes": "RemoteInstance × 3"}
_FUNCTIONS = {"tiny": "tiny", "slow": "20 ms per batch"}
_BATCH = 8  # requests at most, of which 32 at a time fill four batches


def main() -> None:
    """Serve all models at once, measure them in turn, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turn")
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[float]] = {}
    with _served() as triton:
        body, header = WORKLOADS["tiny"].kserve()
        request = (body, "application/octet-stream", header)
        for round_number in range(options.rounds + 1):  # the first one warms up
            for model in (f"{function}_{place}" for function in _FUNCTIONS for place in _PLACES):
                url = f"http://127.0.0.1:{triton.config.http_port}/v2/models/{model}/infer"
                for concurrency in _CONCURRENCIES:
                    throughput = measure_http(url, request, concurrency, options.seconds).throughput
                    print(f"round {round_number}, {model}, c{concurrency}: {throughput:.0f}/s", file=sys.stderr)
                    if round_number:
                        found.setdefault((model, concurrency), []).append(throughput)
    print(heading("Instances in Ray actors", options.rounds))
    print()
    print(markdown_table(["requests/s", *(f"c{concurrency}" for concurrency in _CONCURRENCIES)], list(_rows(found))))


def _rows(found: dict[tuple[str, int], list[float]]) -> Sequence[list[str]]:
    return [
        [
            f"{title}, {where}",
            *(f"{statistics.median(found[f'{function}_{place}', each]):,.0f}" for each in _CONCURRENCIES),
        ]
        for function, title in _FUNCTIONS.items()
        for place, where in _PLACES.items()
    ]


def _served() -> Triton:
    import cloudpickle
    import ray

    from pytriton.ray import RemoteInstance

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    triton = Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0))
    for function, seconds in (("tiny", 0.0), ("slow", 0.02)):
        instance = RemoteInstance(_make, args=[seconds])
        _bind(triton, f"{function}_local", _make(seconds))
        _bind(triton, f"{function}_remote", [instance])
        _bind(triton, f"{function}_remotes", [instance] * 3)
    triton.run()
    return triton


def _make(seconds: float) -> Callable[..., Any]:
    @batch
    def infer(x: Any) -> dict[str, Any]:
        if seconds:
            time.sleep(seconds)  # as if it waited for a device: all share the cores here
        return {"y": x}

    return infer


def _bind(triton: Triton, name: str, infer_func: Any) -> None:
    workload = WORKLOADS["tiny"]
    inputs = [Tensor(name="x", dtype=workload.dtype, shape=workload.shape)]
    outputs = [Tensor(name="y", dtype=workload.dtype, shape=workload.output_shape)]
    triton.bind(name, infer_func, inputs, outputs, config=ModelConfig(max_batch_size=_BATCH))


if __name__ == "__main__":
    main()
