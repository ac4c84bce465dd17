"""Measure this project side by side with nvidia-pytriton: identity over gRPC, and starting and stopping.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from environments import (
    REPOSITORY,
    Contender,
    PerfAnalyzer,
    SetupError,
    ours_in,
    prepare_ours,
    prepare_peer,
    prepare_perf_analyzer,
    versions,
)
from load import LoadError, measure_load
from service import ServiceError, serving

_LIFECYCLE_MODELS = 4


@dataclass(frozen=True)
class Measure:
    """A row of the table.

    Attributes:
        key: its name in the JSON file.
        title: its name in the table.
        more_is_better: which way the ratio goes.
        digits: decimals in the table.
    """

    key: str
    title: str
    more_is_better: bool
    digits: int


Round = dict[str, float]
"""What one round found for one contender, by the key of the measure."""


def main() -> int:
    """Set up, measure in rounds, write the table."""
    options = _parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        contenders, perf_analyzer = _prepare(options)
        results: dict[str, list[Round]] = {contender.name: [] for contender in contenders}
        for index in range(options.rounds):
            for contender in contenders:
                found = _measure_round(contender, perf_analyzer, index, options)
                results[contender.name].append(found)
                summary = ", ".join(f"{key} {value:.6g}" for key, value in found.items())
                print(f"round {index + 1} of {options.rounds}, {contender.name}: {summary}", file=sys.stderr)
    except (SetupError, ServiceError, LoadError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    measures = _measures(options.concurrency)
    print(heading(f"Identity of {options.size} float32 over gRPC, perf_analyzer", options.rounds))
    print()
    print(_table(contenders, measures, results))
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(contenders, measures, results, options), indent=2) + "\n")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender is measured, in turn")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64], help="requests in flight")
    parser.add_argument("--size", type=int, default=16, help="float32 values per request")
    parser.add_argument("--window", type=float, default=3.0, help="seconds; a measurement takes three windows")
    parser.add_argument("--only", choices=["ours", "peer"], help="measure one contender alone")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "build" / "benchmarks", help="kept between runs")
    parser.add_argument(
        "--python", type=interpreter, default=Path(sys.executable), help="what to make the environments with"
    )
    parser.add_argument(
        "--ours-python", type=interpreter, help="interpreter of an environment that has this project already"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to a file")
    options = parser.parse_args()
    if options.rounds < 1 or options.size < 1 or min(options.concurrency) < 1 or options.window <= 0:
        parser.error("--rounds, --size, --concurrency and --window must be positive")
    options.cache = options.cache.resolve()
    return options


def interpreter(name: str) -> Path:
    """Take the name or the path of a Python interpreter from the command line."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is not an executable")
    # Not resolved: a virtual environment is known by the path of its link.
    return Path(found).absolute()


def _prepare(options: argparse.Namespace) -> tuple[list[Contender], PerfAnalyzer]:
    options.cache.mkdir(parents=True, exist_ok=True)
    peer = prepare_peer(options.cache, options.python)
    perf_analyzer = prepare_perf_analyzer(options.cache, peer)
    contenders = []
    if options.only != "peer":
        contenders.append(
            ours_in(options.ours_python) if options.ours_python else prepare_ours(options.cache, options.python)
        )
    if options.only != "ours":
        contenders.append(peer)
    return contenders, perf_analyzer


def _measure_round(contender: Contender, perf_analyzer: PerfAnalyzer, index: int, options: argparse.Namespace) -> Round:
    logs = options.cache / "logs"
    found: Round = {}
    log = logs / f"{contender.name}-{index}-load.log"
    with serving(contender.python, contender.variables, log, models=1, size=options.size) as service:
        for concurrency in options.concurrency:
            load = measure_load(perf_analyzer, service.grpc_port, "identity_0", concurrency, options.window)
            found |= {f"c{concurrency}_{key}": value for key, value in asdict(load).items()}
    log = logs / f"{contender.name}-{index}-lifecycle.log"
    with serving(contender.python, contender.variables, log, models=_LIFECYCLE_MODELS, size=options.size) as service:
        service.stop()
    return found | {"ready_s": service.ready_s, "stop_s": service.stop_s}


def _measures(concurrencies: list[int]) -> list[Measure]:
    measures = [Measure(f"c{c}_throughput", f"inferences/s, concurrency {c}", True, 0) for c in concurrencies]
    for c in concurrencies:
        measures.append(Measure(f"c{c}_p50_ms", f"p50 latency in ms, concurrency {c}", False, 2))
        measures.append(Measure(f"c{c}_p99_ms", f"p99 latency in ms, concurrency {c}", False, 2))
    measures.append(Measure("ready_s", f"s from `Triton()` to ready, {_LIFECYCLE_MODELS} models", False, 2))
    measures.append(Measure("stop_s", f"s of `stop()`, {_LIFECYCLE_MODELS} models", False, 2))
    return measures


def _table(contenders: list[Contender], measures: list[Measure], results: dict[str, list[Round]]) -> str:
    compared = len(contenders) == 2
    header = ["median (min to max)", *(contender.title for contender in contenders)]
    rows = [[*header, "ratio"] if compared else header]
    rows.append(["---"] + ["---:"] * (len(rows[0]) - 1))
    for measure in measures:
        columns = [[found[measure.key] for found in results[contender.name]] for contender in contenders]
        row = [measure.title, *(spread(values, measure.digits) for values in columns)]
        if compared:
            row.append(f"{ratio(measure, *columns):.1f} x")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(values: list[float], digits: int) -> str:
    """Write the median, and in brackets the lowest and the highest."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"**{middle}** ({low} to {high})"


def ratio(measure: Measure, ours: list[float], peer: list[float]) -> float:
    """Say how many times better the median of ours is."""
    better, worse = (ours, peer) if measure.more_is_better else (peer, ours)
    return statistics.median(better) / statistics.median(worse)


def heading(what: str, rounds: int) -> str:
    """Say what was measured, how often, where and when."""
    return (
        f"{what}; {rounds} rounds in turn; {_processor()}, {len(os.sched_getaffinity(0))} cores; "
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC."
    )


def _as_json(
    contenders: list[Contender], measures: list[Measure], results: dict[str, list[Round]], options: argparse.Namespace
) -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": _processor(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
        "settings": {key: getattr(options, key) for key in ("rounds", "concurrency", "size", "window")},
        "contenders": {
            contender.name: {
                "title": contender.title,
                "versions": versions(contender.python),
                "rounds": results[contender.name],
                "medians": {
                    measure.key: statistics.median(found[measure.key] for found in results[contender.name])
                    for measure in measures
                },
            }
            for contender in contenders
        },
        "ratios": {
            measure.key: ratio(measure, *([found[measure.key] for found in results[c.name]] for c in contenders))
            for measure in measures
            if len(contenders) == 2
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
