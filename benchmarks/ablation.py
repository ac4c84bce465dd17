"""Measure what each optimization of the hot path gains: the same server with and without it, side by side.

Prints a Markdown table of ratios: throughput with the optimization over throughput without it. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial

from command import ours, parser, positive, run
from contenders import Server
from environments import Contender, PerfAnalyzer, prepare_peer, prepare_perf_analyzer, site_packages
from load import measure_grpc, measure_http
from measurement import serving


@dataclass(frozen=True)
class Optimization:
    """An optimization that can be turned off.

    Attributes:
        title: Its name in the table.
        off: Environment variables that turn it off.
        scenarios: Where it is measured: keys of `_SCENARIOS`.
    """

    title: str
    off: dict[str, str]
    scenarios: tuple[str, ...]


_OPTIMIZATIONS = {
    "slice": Optimization(
        "short time slices",
        {"PYTRITON_TIME_SLICE": "0"},
        ("http/tiny/1", "http/tiny/64", "grpc/tiny/1", "http/image/1"),
    ),
    "spin": Optimization(
        "adaptive spinning", {"PYTRITON_SPIN": "0"}, ("http/tiny/1", "http/tiny/64", "grpc/tiny/1", "http/image/1")
    ),
    "allocator": Optimization(
        "the allocator",
        {"PYTRITON_ALLOCATOR": "0"},
        ("http/tiny/1", "http/tiny/64", "http/tiny/256", "http/image/1", "http/image/64", "grpc/image/1"),
    ),
    "purge": Optimization(
        # The allocator's default.
        "keeping freed memory for 10 s rather than 1 s",
        {"MIMALLOC_PURGE_DELAY": "1000"},
        ("http/tiny/64", "http/image/1", "http/image/64", "http/image/256"),
    ),
    "malloc": Optimization(
        # Any tunable of malloc leaves the allocator and its settings to the user; this one has its default value.
        "the allocator, and malloc settings",
        {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"},
        ("http/image/1", "http/image/64", "grpc/image/1"),
    ),
    # Not an optimization as a whole: what it costs, less what it gains by waking the front end's threads less often.
    "guard": Optimization(
        "the guard",
        {"PYTRITON_GUARD": "0"},
        ("http/tiny/1", "http/tiny/64", "http/tiny/256", "grpc/tiny/1", "http/image/1"),
    ),
    "batching": Optimization(
        "batches that the backend builds",
        {"PYTRITON_BATCHING": "0"},
        ("http/tiny/1", "http/tiny/64", "http/tiny/256", "grpc/tiny/1", "http/image/1", "http/image/64"),
    ),
    "event_loop": Optimization(
        "fewer system calls of the front end's event loops",
        {"PYTRITON_EVENT_LOOP": "0"},
        ("http/tiny/1", "http/tiny/64", "http/tiny/256"),
    ),
    "transfer": Optimization("libevent's transfer size", {}, ("http/image/1", "http/image/64")),
}

_SCENARIOS = (
    "http/tiny/1",
    "http/tiny/64",
    "http/tiny/256",
    "grpc/tiny/1",
    "http/image/1",
    "http/image/64",
    "http/image/256",
    "grpc/image/1",
)
_WARM_UP_S = 1


def main() -> int:
    """Measure in rounds, and print the table."""
    made = parser(__doc__)
    made.add_argument(
        "--optimizations", nargs="+", choices=[*_OPTIMIZATIONS], default=[*_OPTIMIZATIONS], metavar="NAME"
    )
    made.add_argument("--scenarios", nargs="+", choices=_SCENARIOS, default=[*_SCENARIOS], metavar="NAME")
    made.add_argument("--rounds", type=positive, default=24, help="how often each is measured, in turn")
    made.add_argument("--seconds", type=positive, default=1, help="of one measurement")
    options = made.parse_args()
    return run("ablation.py", partial(_measure, options))


def _measure(options: argparse.Namespace) -> None:
    peer = prepare_peer(options.cache, options.python)
    perf_analyzer = prepare_perf_analyzer(options.cache, peer)
    contender = ours(options)
    variants = {"": contender} | {name: _without(name, contender, peer) for name in options.optimizations}
    print("| optimization | where | with / without: median | quartiles | rounds won |", flush=True)
    print("| --- | --- | ---: | ---: | ---: |", flush=True)
    for scenario in options.scenarios:
        names = [name for name in options.optimizations if scenario in _OPTIMIZATIONS[name].scenarios]
        if names:
            _measure_scenario(scenario, {name: variants[name] for name in ("", *names)}, perf_analyzer, options)


def _measure_scenario(
    scenario: str, variants: dict[str, Contender], perf_analyzer: PerfAnalyzer, options: argparse.Namespace
) -> None:
    protocol, workload, concurrency = scenario.split("/")
    logs = options.cache / "logs"
    with contextlib.ExitStack() as stack:
        services = {
            name: (stack.enter_context(serving(server, workload, logs)), server)
            for name, server in ((name, Server(variant, "serve_pytriton.py")) for name, variant in variants.items())
        }

        def throughput(name: str, seconds: float) -> float:
            service, server = services[name]
            if protocol == "grpc":
                return measure_grpc(
                    perf_analyzer, service.grpc_port, workload, int(concurrency), seconds / 2
                ).throughput
            url = f"http://127.0.0.1:{service.http_port}{server.path(workload)}"
            return measure_http(url, server.request(workload), int(concurrency), int(seconds)).throughput

        for name in services:
            throughput(name, _WARM_UP_S)
        found: dict[str, list[float]] = {name: [] for name in services}
        order = list(services)
        for number in range(options.rounds):
            first = number % len(order)
            for name in order[first:] + order[:first]:
                found[name].append(throughput(name, options.seconds))
            print(f"{scenario}, round {number + 1}", file=sys.stderr, flush=True)
    for name, values in found.items():
        if name:
            _print_row(_OPTIMIZATIONS[name].title, scenario, found[""], values)


def _print_row(title: str, scenario: str, with_it: list[float], without: list[float]) -> None:
    ratios = [ours / theirs for ours, theirs in zip(with_it, without, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    won = sum(ratio > 1 for ratio in ratios)
    protocol, workload, concurrency = scenario.split("/")
    where = f"{protocol.replace('http', 'HTTP').replace('grpc', 'gRPC')} {workload} c{concurrency}"
    print(f"| {title} | {where} | {median:.2f} | {low:.2f}–{high:.2f} | {won} of {len(ratios)} |", flush=True)


def _without(name: str, contender: Contender, peer: Contender) -> Contender:
    """Turn an optimization off; the peer's wheel has the server as NVIDIA published it."""
    off = _OPTIMIZATIONS[name].off
    if name == "transfer":
        off = {"PYTRITON_SERVER_PATH": str(site_packages(peer.python) / "pytriton" / "tritonserver")}
    return replace(contender, name=f"without-{name}", variables=contender.variables | off)


if __name__ == "__main__":
    sys.exit(main())
