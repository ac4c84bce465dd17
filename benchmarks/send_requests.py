"""Time calls of `ModelClient` beside bare calls of tritonclient: a block of each for every line on standard input.

Prints a line of JSON for each, with the median seconds per call of each block. The script uses only what this project
shares with nvidia-pytriton 0.7.0, so it runs unchanged in the environment of either, and both take turns: what else the
machine does affects both.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from workloads import WORKLOADS, Workload


def main() -> None:
    """Time blocks of calls until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=["http", "grpc"], required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workload", choices=WORKLOADS, default="tiny", help="the payload, which the model returns")
    parser.add_argument("--asyncio", action="store_true", help="time the clients for asyncio")
    parser.add_argument("--calls", type=int, default=100, help="in a block, after a tenth as many for warm-up")
    parser.add_argument(
        "--shared-memory", action="store_true", help="compare with shared memory, not with tritonclient"
    )
    options = parser.parse_args()

    definition = WORKLOADS[options.workload]
    if options.asyncio:
        asyncio.run(_time_coroutines(options, definition))
        return
    ours = _model_client(options.protocol, options.port, definition)
    other = _bare(options.protocol, options.port, definition)
    if options.shared_memory:
        other, ours = ours, _model_client(options.protocol, options.port, definition, shared_memory=True)
    for call in (other, ours):
        _check(call(), definition)
    print(json.dumps({}), flush=True)  # ready
    for _ in sys.stdin:
        times = {"other": _seconds_per_call(other, options.calls), "ours": _seconds_per_call(ours, options.calls)}
        print(json.dumps(times), flush=True)


async def _time_coroutines(options: argparse.Namespace, definition: Workload) -> None:
    ours = _asyncio_model_client(options.protocol, options.port, definition)
    other = _asyncio_bare(options.protocol, options.port, definition)
    for call in (other, ours):
        _check(await call(), definition)
    print(json.dumps({}), flush=True)  # ready
    for _ in sys.stdin:
        times = {
            "other": await _seconds_per_coroutine(other, options.calls),
            "ours": await _seconds_per_coroutine(ours, options.calls),
        }
        print(json.dumps(times), flush=True)


def _check(response: Any, definition: Workload) -> None:
    if not np.array_equal(response, definition.sample()):
        raise SystemExit("the model responds with something other than its input")


def _seconds_per_call(call: Callable[[], Any], count: int) -> float:
    """Return the median over a block."""
    for _ in range(max(1, count // 10)):
        call()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def _seconds_per_coroutine(call: Callable[[], Awaitable[Any]], count: int) -> float:
    """Return the median over a block."""
    for _ in range(max(1, count // 10)):
        await call()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _bare(protocol: str, port: int, definition: Workload) -> Callable[[], Any]:
    values = definition.sample()
    library = importlib.import_module(f"tritonclient.{protocol}")
    client = library.InferenceServerClient(f"127.0.0.1:{port}")

    def call() -> Any:
        tensor = library.InferInput("x", list(values.shape), definition.datatype)
        tensor.set_data_from_numpy(values)
        return client.infer(definition.name, [tensor]).as_numpy("y")

    return call


def _asyncio_bare(protocol: str, port: int, definition: Workload) -> Callable[[], Awaitable[Any]]:
    values = definition.sample()
    library = importlib.import_module(f"tritonclient.{protocol}.aio")
    client = library.InferenceServerClient(f"127.0.0.1:{port}")

    async def call() -> Any:
        tensor = library.InferInput("x", list(values.shape), definition.datatype)
        tensor.set_data_from_numpy(values)
        return (await client.infer(definition.name, [tensor])).as_numpy("y")

    return call


def _asyncio_model_client(protocol: str, port: int, definition: Workload) -> Callable[[], Awaitable[Any]]:
    from pytriton.client import AsyncioModelClient

    values = definition.sample()
    client = AsyncioModelClient(f"{protocol}://127.0.0.1:{port}", definition.name)

    async def call() -> Any:
        return (await client.infer_batch(x=values))["y"]

    return call


def _model_client(protocol: str, port: int, definition: Workload, **arguments: Any) -> Callable[[], Any]:
    from pytriton.client import ModelClient

    values = definition.sample()
    client = ModelClient(f"{protocol}://127.0.0.1:{port}", definition.name, **arguments)
    return lambda: client.infer_batch(x=values)["y"]


if __name__ == "__main__":
    main()
