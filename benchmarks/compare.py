"""Measure this project side by side with other ways to serve a Python function.

Writes a Markdown report, every number as JSON and a plot into a folder; progress goes to stderr. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from command import parser, positive, run
from contenders import CONTENDERS, PROTOCOLS, Places, Server, prepare
from environments import (
    PERF_ANALYZER_REQUIREMENT,
    REPOSITORY,
    SetupError,
    git_description,
    prepare_peer,
    prepare_perf_analyzer,
    versions,
)
from load import wrk_version
from measurement import Found, Pair, Plan, measure_bls, measure_lifecycle, measure_workload
from plot import draw
from report import MAIN, Results, machine, write_report
from workloads import NAMES

_COMPARED = [name for name in NAMES if name != "large"]
_OTHERS = ["lifecycle", "bls"]
_QUICK: dict[str, Any] = {
    "rounds": 1,
    "main_rounds": 1,
    "seconds": 1,
    "workloads": ["tiny", "image"],
    "concurrency": [1, 64],
    "tiny_concurrency": [],
    "instances": [],
}


def main() -> int:
    """Set up, measure in rounds, write the results."""
    options = _parse_arguments()
    return run("compare.py", lambda: _compare(options))


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--contenders", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS], metavar="NAME")
    made.add_argument(
        "--workloads", nargs="+", choices=[*NAMES, *_OTHERS], default=[*_COMPARED, *_OTHERS], metavar="NAME"
    )
    made.add_argument(
        "--concurrency", type=positive, nargs="*", default=[1, 8, 64, 256], help="over HTTP, of tiny and image"
    )
    many = "over HTTP, also of tiny"
    made.add_argument("--tiny-concurrency", type=positive, nargs="*", default=[1024], help=many)
    few = "over HTTP, of other workloads"
    made.add_argument("--other-concurrency", type=positive, nargs="*", default=[1, 64], help=few)
    made.add_argument("--grpc-concurrency", type=positive, nargs="*", default=[1, 64], help="over gRPC")
    made.add_argument("--instances", type=positive, nargs="*", default=[2, 8], help="apart from 1, of the tiny model")
    made.add_argument("--rounds", type=positive, default=4, help="how often each is measured, in turn")
    main = "how often what the main table shows is measured; by default twice as often as the rest"
    made.add_argument("--main-rounds", type=positive, help=main)
    made.add_argument("--seconds", type=positive, default=2, help="of one measurement")
    made.add_argument("--results", type=Path, default=REPOSITORY / "build" / "benchmarks" / "results")
    quick = "for a first impression: one short round of the tiny model and of the image; other arguments still apply"
    made.add_argument("--quick", action="store_true", help=quick)
    if made.parse_args().quick:
        made.set_defaults(**_QUICK)
    options = made.parse_args()
    options.main_rounds = options.main_rounds or 2 * options.rounds
    options.results = options.results.resolve()
    return options


def _compare(options: argparse.Namespace) -> None:
    tools = {"Python": sys.version.split()[0], "wrk": wrk_version()}
    places = Places(options.cache, options.python, options.ours_python)
    servers, missing = prepare(options.contenders, places)
    if not servers:
        raise SetupError("none of the contenders could be installed: " + ", ".join(options.contenders))
    perf_analyzer = None
    if options.grpc_concurrency:
        try:
            perf_analyzer = prepare_perf_analyzer(options.cache, prepare_peer(options.cache, options.python))
            tools["perf_analyzer"] = f"of {PERF_ANALYZER_REQUIREMENT}"
        except SetupError as error:
            missing["perf_analyzer"] = str(error)
    plan = Plan(
        _concurrency(options),
        options.grpc_concurrency,
        options.seconds,
        options.rounds,
        frozenset(key.rpartition("/")[0] for _, key, _ in MAIN),
        options.main_rounds,
        options.cache / "logs",
        perf_analyzer,
    )
    results = _no_results(servers, missing, tools) | {"rounds": plan.rounds, "main_rounds": plan.main_rounds}
    most = max(plan.rounds, plan.main_rounds)
    pairs = [(server, Found(server.name, [{} for _ in range(most)])) for server in servers]
    for measure in _measurements(pairs, plan, options):
        measure()
        _keep(pairs, results, options.results)
    print(write_report(results, options.results))
    try:
        draw(results, options.results, options.cache, options.python)
    except SetupError as error:
        print(f"compare.py: there is no plot: {error}", file=sys.stderr)


def _concurrency(options: argparse.Namespace) -> dict[str, list[int]]:
    """Return by workload how many requests at a time are measured: few for most of them, because a run takes long."""
    found: dict[str, list[int]] = dict.fromkeys(NAMES, options.other_concurrency)
    found["image"] = options.concurrency
    found["tiny"] = sorted({*options.concurrency, *options.tiny_concurrency})
    return found


def _no_results(servers: list[Server], missing: dict[str, str], tools: dict[str, str]) -> Results:
    return {
        "machine": machine(),
        "commit": git_description(),
        "tools": tools,
        "contenders": {
            server.name: {
                "title": server.contender.title,
                "protocol": PROTOCOLS[server.protocol],
                "note": server.note,
                "versions": versions(server.contender.python),
                "bound": server.is_bound,
                "rounds": [],
                "failed": [],
            }
            for server in servers
        },
        "missing": missing,
    }


def _measurements(pairs: list[Pair], plan: Plan, options: argparse.Namespace) -> Iterator[Callable[[], None]]:
    for workload in NAMES:
        able = [pair for pair in pairs if workload in pair[0].workloads]
        for instances in [1, *(options.instances if workload == "tiny" else [])]:
            if workload in options.workloads:
                yield partial(measure_workload, able, workload, instances, plan)
    if "bls" in options.workloads:
        yield partial(measure_bls, [pair for pair in pairs if pair[0].has_bls], plan)
    if "lifecycle" in options.workloads:
        yield partial(measure_lifecycle, pairs, plan)


def _keep(pairs: list[Pair], results: Results, folder: Path) -> None:
    """Write what is known after each workload, so that an interrupted run loses only the last one."""
    for server, found in pairs:
        results["contenders"][server.name] |= {"rounds": found.rounds, "failed": found.failed}
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "results.json.part"
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    unfinished.rename(folder / "results.json")
    write_report(results, folder)


if __name__ == "__main__":
    sys.exit(main())
