"""Time what the worker adds to an inference callable: decoding a batch, handing it over, sending outputs back.

Writes a Markdown table to stdout. It needs no server: batches are written to shared memory as the backend does.
See README.md beside this file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.wire.encoding import TensorColumn, aligned
from pytriton.proxy.wire.encoding import TensorLocation as Place
from pytriton.proxy.wire.inference import BatchMessage
from pytriton.proxy.worker.worker import Worker

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from peer_codecs import encode_batch

_FLOAT32 = 11
_SECONDS = 0.02


class Rig:
    """A worker, and a batch for it in shared memory.

    Args:
        infer_func: what the worker calls.
        size: float32 values per request.
        requests: how many the batch has.
    """

    def __init__(self, infer_func: Callable[..., Any], size: int, requests: int) -> None:
        tensors = {name: [Tensor((-1,), np.float32, name)] for name in ("x", "y")}
        config = ModelConfig(max_batch_size=max(64, requests))
        self._signature = Signature(ModelSpec.create("identity", tensors["x"], tensors["y"], config=config))
        self._worker = Worker(infer_func, self._signature)
        self._server, self._results = Arena(), Arena()
        self._batches = PeerArena(os.dup(self._server.fd))
        self._read = PeerArena(os.dup(self._results.fd))
        marks, data = aligned(requests), requests * size * 4
        column = TensorColumn(0, _FLOAT32, True, [Place(marks, data, (requests, size))])
        head = encode_batch(BatchMessage(requests, [1] * requests, [column], [])).to_bytes()
        self._size = len(head) + marks + data
        self._offset = self._server.allocate(self._size)
        self._server.memory[self._offset : self._offset + len(head)] = head

    def serve(self) -> None:
        """Serve the batch once, as a worker does between two notifications."""
        one = Batch(self._batches.lease(self._offset, self._size), self._signature)
        offset, size, _ = self._worker._infer(one, self._results)
        self._read.lease(offset, size)  # which dies at once: the server has read it


@batch
def batched(x: Any) -> list[Any]:
    """Return the input of all requests."""
    return [x]


@batch
def _changed(x: Any) -> list[Any]:
    return [x + 1]


def listed(requests: list[Any]) -> list[Any]:
    """Return the input of each request."""
    return [{"y": request["x"]} for request in requests]


_CALLABLES = {"@batch, returns its input": batched, "@batch, x + 1": _changed, "list of requests": listed}


def main() -> None:
    """Measure, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64], help="in a batch")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 1024, 150_528], help="float32 values per request")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    print("| µs per batch, least (median) | " + " | ".join(f"{count} requests" for count in options.requests) + " |")
    print("| --- |" + " ---: |" * len(options.requests))
    for size in options.sizes:
        for title, infer_func in _CALLABLES.items():
            cells = [_measure(Rig(infer_func, size, count), options.rounds) for count in options.requests]
            print(f"| {size:,} float32, {title} | " + " | ".join(cells) + " |")


def _measure(rig: Rig, rounds: int) -> str:
    found = per_batch_us(rig, rounds)
    return f"**{min(found):,.0f}** ({statistics.median(found):,.0f})"


def per_batch_us(rig: Rig, rounds: int) -> list[float]:
    """Measure how many microseconds a batch takes, after a warm-up; once for each round."""
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < _SECONDS:
        rig.serve()
        count += 1
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            rig.serve()
        found.append((time.perf_counter() - started) / count * 1e6)
    return found


if __name__ == "__main__":
    main()
