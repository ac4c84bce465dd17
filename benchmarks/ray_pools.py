"""Measure a pool of `pytriton.ray` beside the same function on Ray Serve, through its proxy and through HAProxy.

Writes a Markdown table to stdout. One node, one replica each, in one cluster; rounds alternate. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from load import Load, measure_http
from report import markdown_table
from service import free_ports
from workloads import MAX_BATCH_SIZE, WORKLOADS, Workload

_CONCURRENCIES = (1, 32)
_WORKLOADS = ("tiny", "image")
_HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"


def _build(triton: Any) -> None:
    from pytriton.decorators import batch
    from pytriton.model_config import ModelConfig, Tensor

    for name in _WORKLOADS:
        workload = WORKLOADS[name]
        function = workload.function()

        @batch
        def infer(x: Any, function: Callable[[Any], Any] = function) -> dict[str, Any]:
            return {"y": function(x)}

        inputs = [Tensor(name="x", dtype=workload.dtype, shape=workload.shape)]
        outputs = [Tensor(name="y", dtype=workload.dtype, shape=workload.output_shape)]
        triton.bind(name, infer, inputs, outputs, config=ModelConfig(max_batch_size=MAX_BATCH_SIZE))


def _plain_app(workload: Workload) -> Any:
    """Make an application of Ray Serve with the same function: raw bytes in, raw bytes out, no batches."""
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    shape = workload.shape

    @serve.deployment(num_replicas=1, max_ongoing_requests=256)
    class Plain:
        async def __call__(self, request: Request) -> Response:
            array = np.frombuffer(await request.body(), np.float32).reshape(1, *shape)
            return Response(array.tobytes(), media_type="application/octet-stream")

    deployment: Any = Plain
    return deployment.bind()


@contextlib.contextmanager
def _contenders(workload: Workload, port: int) -> Iterator[dict[str, Callable[[int, int], Load]]]:
    """Deploy the pool and the plain application, and yield how each is measured."""
    import cloudpickle
    import ray
    from ray import serve

    import pytriton.ray

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        pool = pytriton.ray.deploy(_build, name="pool")
        serve.run(_plain_app(workload), name="plain", route_prefix="/")
        body, header = workload.kserve()
        [url] = pool.urls()()
        direct = partial(
            measure_http,
            f"{url}/v2/models/{workload.name}/infer",
            (body, "application/octet-stream", header),
        )
        plain = partial(measure_http, f"http://127.0.0.1:{port}/", (workload.raw(), "application/octet-stream", 0))
        yield {"pool": direct, "serve": plain}
    finally:
        serve.shutdown()
        ray.shutdown()


def _measure(name: str, rounds: int, seconds: int) -> None:
    """Measure one workload in this process's cluster, and write the medians to stdout as JSON."""
    [port] = free_ports(1)
    with _contenders(WORKLOADS[name], port) as contenders:
        for measure in contenders.values():
            measure(8, 2)
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for concurrency in _CONCURRENCIES:
                for contender, measure in contenders.items():
                    found.setdefault(f"{contender} {concurrency}", []).append(measure(concurrency, seconds).throughput)
    json.dump({key: statistics.median(values) for key, values in found.items()}, sys.stdout)


def _row(name: str, ha_proxy: bool, options: argparse.Namespace) -> list[str]:
    command = [
        sys.executable,
        __file__,
        "--workload",
        name,
        f"--rounds={options.rounds}",
        f"--seconds={options.seconds}",
    ]
    environment = {**os.environ, _HA_PROXY: "1"} if ha_proxy else dict(os.environ)
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.rstrip().rpartition("\n")[2])
    row = [WORKLOADS[name].title, "HAProxy" if ha_proxy else "Serve's proxy"]
    for concurrency in _CONCURRENCIES:
        pool, plain = found[f"pool {concurrency}"], found[f"serve {concurrency}"]
        row += [f"{pool:,.0f}", f"{plain:,.0f}", f"{pool / plain:.1f}×"]
    return row


def main() -> None:
    """Measure all pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--workload", choices=_WORKLOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workload:
        _measure(options.workload, options.rounds, options.seconds)
        return
    header = ["", "Ray Serve through"]
    for concurrency in _CONCURRENCIES:
        header += [f"pool, c{concurrency}", f"Ray Serve, c{concurrency}", "ratio"]
    rows = [_row(name, ha_proxy, options) for name in _WORKLOADS for ha_proxy in (False, True)]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
