"""Measure where the time of a request goes: in the client and Triton's front end, its queue, the backend, the worker.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from command import parser, positive, run
from contenders import CONTENDERS, Places, Server
from load import TOKEN, measure_http
from measurement import serving
from report import heading, markdown_table
from service import Service

_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
_WARM_UP_S = 1


@dataclass(frozen=True)
class Way:
    """Microseconds per request, as means over a measurement.

    Attributes:
        latency: as the client sees it.
        between: from one response to the next: what a request costs the machine.
        batch: requests per batch.
        stages: what Triton's statistics have for its queue, and for before, in and after the model's function.
        server: processor time of the server.
        worker: processor time of the process that has the model's function; 0 where that is in the server.
    """

    latency: float
    between: float
    batch: float
    stages: dict[str, float]
    server: float
    worker: float


def main() -> int:
    """Set up, measure in rounds, write the table."""
    made = parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=["tiny", "image", "strings"], default=["tiny", "image"])
    made.add_argument("--concurrency", type=positive, nargs="+", default=[1, 64], help="over HTTP")
    made.add_argument("--rounds", type=positive, default=9, help="how often each is measured, in turn")
    made.add_argument("--seconds", type=positive, default=1, help="of one measurement")
    options = made.parse_args()
    return run("latency_breakdown.py", lambda: _profile(options))


def _profile(options: argparse.Namespace) -> None:
    places = Places(options.cache, options.python, options.ours_python)
    servers = [CONTENDERS[name](places) for name in ("ours", "bundled")]
    columns: dict[str, list[Way]] = {}
    for workload in options.workloads:
        with contextlib.ExitStack() as stack:
            services = []
            for server in servers:
                service = stack.enter_context(serving(server, workload, options.cache / "logs"))
                services.append((server, service))
            for concurrency in options.concurrency:
                found: list[list[Way]] = [[], []]
                for number in range(options.rounds + 1):
                    for ways, (server, service) in zip(found, services, strict=True):
                        seconds = options.seconds if number else _WARM_UP_S
                        ways.append(_measure(server, service, workload, concurrency, seconds))
                name = f"{workload} c{concurrency}"
                columns[name] = [_median(ways[1:]) for ways in found]
                print(f"{name}: {columns[name]}", file=sys.stderr)
    print(heading("Microseconds of a request over HTTP, medians", options.rounds))
    print()
    print(_table(columns))


def _measure(server: Server, service: Service, workload: str, concurrency: int, seconds: int) -> Way:
    url = f"http://127.0.0.1:{service.http_port}"
    before, cpu_s, own_s = _statistics(url, workload), service.cpu_s(), service.own_cpu_s()
    load = measure_http(f"{url}{server.path(workload)}", server.request(workload), concurrency, seconds)
    after = _statistics(url, workload)
    count = after["inference_count"] - before["inference_count"]
    batches = after["execution_count"] - before["execution_count"]
    own = 0.0 if server.is_bound else (service.own_cpu_s() - own_s) * 1e6 / count
    stages = {
        stage: (after["inference_stats"][stage]["ns"] - before["inference_stats"][stage]["ns"]) / count / 1e3
        for stage in _STAGES
    }
    return Way(
        latency=load.mean_ms * 1e3,
        between=1e6 / load.throughput,
        batch=count / batches,
        stages=stages,
        server=(service.cpu_s() - cpu_s) * 1e6 / count - own,
        worker=own,
    )


def _statistics(url: str, model: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/v2/models/{model}/stats", headers={"triton-access-token": TOKEN})
    with urllib.request.urlopen(request) as response:
        found: dict[str, Any] = json.load(response)["model_stats"][0]
        return found


def _median(ways: list[Way]) -> Way:
    def of(value: Callable[[Way], float]) -> float:
        return statistics.median(map(value, ways))

    return Way(
        of(lambda way: way.latency),
        of(lambda way: way.between),
        of(lambda way: way.batch),
        {stage: statistics.median(way.stages[stage] for way in ways) for stage in _STAGES},
        of(lambda way: way.server),
        of(lambda way: way.worker),
    )


def _table(columns: dict[str, list[Way]]) -> str:
    rows: list[tuple[str, Callable[[Way, Way], float], int]] = [
        ("requests per batch", lambda ours, _: ours.batch, 1),
        ("**latency, as the client sees it**", lambda ours, _: ours.latency, 0),
        ("client, network, Triton's HTTP", lambda ours, _: ours.latency - sum(ours.stages.values()), 0),
        ("Triton's queue", lambda ours, _: ours.stages["queue"], 0),
        ("copy in, wake-up, decoding the batch", lambda ours, _: ours.stages["compute_input"], 0),
        ("the function", lambda ours, _: ours.stages["compute_infer"], 0),
        ("writing outputs, wake-up, copy out", lambda ours, _: ours.stages["compute_output"], 0),
        ("**a request costs the machine**", lambda ours, _: ours.between, 0),
        ("the baseline costs the machine", lambda _, baseline: baseline.between, 0),
        ("the difference, which we add", lambda ours, baseline: ours.between - baseline.between, 0),
        ("**processor: the server**", lambda ours, _: ours.server, 0),
        ("the baseline's server", lambda _, baseline: baseline.server, 0),
        ("processor: the worker", lambda ours, _: ours.worker, 0),
    ]
    cells = [[title, *(f"{value(*ways):,.{digits}f}" for ways in columns.values())] for title, value, digits in rows]
    return markdown_table(["µs per request, means", *columns], cells)


if __name__ == "__main__":
    sys.exit(main())
