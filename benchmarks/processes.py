"""Measure instances in processes of their own: pure Python on one or more of them, and what a request costs there.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc
from report import heading, markdown_table, spread

from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton, TritonConfig

_LOOPS = 200_000


def main() -> int:
    """Serve all models at once, measure them in turn, write the table."""
    options = _parse_arguments()
    if options.send_request:
        print(json.dumps(_send(options.url, options.send_request, options.concurrency, options.seconds)))
        return 0
    cores = options.processes
    lanes = {
        "work_process": ("pure Python, 1 process", cores * 4),
        "work_processes": (f"pure Python, {cores} processes", cores * 4),
        "work_threads": (f"pure Python, {cores} threads", cores * 4),
        "identity_thread": ("identity of 16 float32, a thread, one request at a time", 1),
        "identity_process": ("identity of 16 float32, a process, one request at a time", 1),
    }
    found: dict[str, list[float]] = {model: [] for model in lanes}
    with Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0)) as triton:
        _bind(triton, "work_process", [ProcessInstance(_make_work)])
        _bind(triton, "work_processes", [ProcessInstance(_make_work)] * cores)
        _bind(triton, "work_threads", [_make_work()] * cores)
        _bind(triton, "identity_thread", [_identity])
        _bind(triton, "identity_process", [ProcessInstance(lambda: _identity)])
        triton.run()
        url = f"127.0.0.1:{triton.config.grpc_port}"
        for index in range(options.rounds):
            for model, (title, concurrency) in lanes.items():
                found[model].append(_measure(url, model, concurrency, options.seconds))
                print(f"round {index + 1} of {options.rounds}, {title}: {found[model][-1]:.1f}/s", file=sys.stderr)
    print(heading("Instances in processes of their own", options.rounds))
    print()
    rows = [[title, spread(found[model], 1)] for model, (title, _) in lanes.items()]
    print(markdown_table(["", "requests/s"], rows))
    ratios = [two / one for one, two in zip(found["work_process"], found["work_processes"], strict=True)]
    print(f"\n{cores} processes against 1, by rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turn")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="how many to compare with one")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    for hidden in ("--send-request", "--url", "--concurrency"):  # of the client, which is a separate process
        parser.add_argument(hidden, help=argparse.SUPPRESS, type=int if hidden == "--concurrency" else str)
    return parser.parse_args()


def _make_work() -> Callable[..., Any]:
    def work(requests: list[Any]) -> list[Any]:
        total = 0
        for number in range(_LOOPS):
            total += number & 3
        return requests

    return work


def _identity(requests: list[Any]) -> list[Any]:
    return requests


def _bind(triton: Triton, name: str, infer_func: Any) -> None:
    inputs, outputs = [Tensor((16,), np.float32, "x")], [Tensor((16,), np.float32, "y")]
    triton.bind(name, infer_func, inputs, outputs, config=ModelConfig(max_batch_size=1))


def _measure(url: str, model: str, concurrency: int, seconds: float) -> float:
    """Return requests per second, sent by a separate process."""
    command = [sys.executable, __file__, "--send-request", model, "--url", url, "--concurrency", str(concurrency)]
    done = subprocess.run([*command, "--seconds", str(seconds)], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def _send(url: str, model: str, concurrency: int, seconds: float) -> float:
    tensor = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    with tritonclient.grpc.InferenceServerClient(url) as client, ThreadPoolExecutor(concurrency) as pool:

        def send_request(end: float) -> int:
            count = 0
            while time.monotonic() < end:
                client.infer(model, [tensor])
                count += 1
            return count

        def send_together(duration: float) -> float:
            start = time.monotonic()
            counts = list(pool.map(send_request, [start + duration] * concurrency))
            return sum(counts) / (time.monotonic() - start)

        send_together(0.5)
        return send_together(seconds)


if __name__ == "__main__":
    sys.exit(main())
