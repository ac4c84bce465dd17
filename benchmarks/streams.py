"""Measure streams side by side with nvidia-pytriton: responses per second, the first response, a thousand at once.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from command import ours, parser, positive, run
from environments import Contender, prepare_peer, versions
from load import LoadError
from report import heading, markdown_table, spread
from service import running

_CLIENT = Path(__file__).with_name("stream_client.py")
_TIMEOUT_S = 300.0
_BURST_STREAMS = 1_000
_BURST_RESPONSES = 50


Round = dict[str, float]
"""The results of one round for one column, by the key of the measure."""


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


@dataclass(frozen=True)
class Lane:
    """A column of the table.

    Attributes:
        contender: whose server it is.
        model: what it serves, of `serve_streams.py`.
        title: the column's heading.
    """

    contender: Contender
    model: str
    title: str

    @property
    def key(self) -> str:
        """Its name in the JSON file."""
        return f"{self.contender.name}_{self.model}"


def main() -> int:
    """Set up, measure in rounds, write the table."""
    options = _parse_arguments()
    return run("streams.py", lambda: _compare(options))


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rounds", type=positive, default=3, help="how often each column is measured, in turn")
    made.add_argument("--streams", type=positive, default=32, help="streams at the same time")
    made.add_argument("--responses", type=positive, default=200, help="responses of each stream")
    made.add_argument("--max-batch-size", type=positive, default=64, help="of the models; 1 keeps streams apart")
    made.add_argument("--seconds", type=positive, default=5, help="length of a measurement of throughput")
    made.add_argument("--samples", type=positive, default=200, help="first responses that are measured, two or more")
    made.add_argument("--only", choices=["ours", "peer"], help="measure one side alone")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every number to a file")
    options = made.parse_args()
    if options.samples < 2:
        made.error("--samples must be at least 2")
    return options


def _compare(options: argparse.Namespace) -> None:
    lanes = _prepare(options)
    results: dict[str, list[Round]] = {lane.key: [] for lane in lanes}
    for index in range(options.rounds):
        for lane in lanes:
            found = _measure_round(lane, index, options)
            results[lane.key].append(found)
            summary = ", ".join(f"{key} {value:.6g}" for key, value in found.items())
            print(f"round {index + 1} of {options.rounds}, {lane.key}: {summary}", file=sys.stderr)
    print(heading("Streams of 16-byte responses over gRPC", options.rounds))
    print()
    print(_table(lanes, _measures(options), results))
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(lanes, results, options), indent=2) + "\n")


def _prepare(options: argparse.Namespace) -> list[Lane]:
    lanes = []
    if options.only != "peer":
        mine = ours(options)
        lanes += [
            Lane(mine, "async", f"{mine.title}, async generator"),
            Lane(mine, "generator", "generator"),
            Lane(mine, "batch", "generator under `@batch`"),
        ]
    if options.only != "ours":
        peer = prepare_peer(options.cache, options.python)
        lanes.append(Lane(peer, "batch", f"{peer.title}, generator under `@batch`"))
    return lanes


def _measure_round(lane: Lane, index: int, options: argparse.Namespace) -> Round:
    log = options.cache / "logs" / f"streams-{lane.key}-{index}.log"
    arguments = [f"--model={lane.model}", f"--max-batch-size={options.max_batch_size}"]
    if lane.contender.name == "ours" and lane.model == "async":
        arguments.append(f"--max-in-flight={_BURST_STREAMS}")
    found: Round = {}
    with running("serve_streams.py", arguments, lane.contender.python, lane.contender.variables, log) as service:
        target = [f"--port={service.grpc_port}", f"--model={lane.model}"]
        found |= _measure("first", *target, f"--samples={options.samples}")
        streams = [f"--streams={options.streams}", f"--responses={options.responses}"]
        found |= _measure("throughput", *target, *streams, f"--seconds={options.seconds}")
        found |= _measure("burst", *target, f"--streams={_BURST_STREAMS}", f"--responses={_BURST_RESPONSES}")
    return found


def _measure(*arguments: str) -> Round:
    """Run the client once, with the same interpreter for all servers."""
    command = [sys.executable, str(_CLIENT), *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:.0f} s") from error
    if finished.returncode != 0:
        raise LoadError(f"`{' '.join(command)}` failed:\n{finished.stderr}")
    found: Round = json.loads(finished.stdout)
    return found


def _measures(options: argparse.Namespace) -> list[Measure]:
    streams = f"{options.streams} streams of {options.responses}"
    return [
        Measure("responses_per_s", f"responses/s, {streams}", True, 0),
        Measure("client_cpu", "processors that the client took meanwhile", False, 2),
        Measure(
            "burst_responses_per_s", f"responses/s, {_BURST_STREAMS} streams of {_BURST_RESPONSES} at once", True, 0
        ),
        Measure("first_p50_ms", "ms to the first response when idle, p50", False, 2),
        Measure("first_p99_ms", "ms to the first response when idle, p99", False, 2),
    ]


def _table(lanes: list[Lane], measures: list[Measure], results: dict[str, list[Round]]) -> str:
    rows = []
    for measure in measures:
        columns = [[found[measure.key] for found in results[lane.key]] for lane in lanes]
        cells = [spread(values, measure.digits) for values in columns]
        if lanes[-1].contender.name == "peer" and measure.key != "client_cpu":
            for position, values in enumerate(columns[:-1]):
                cells[position] += f" {_ratio(measure, values, columns[-1]):.1f} x"
        rows.append([measure.title, *cells])
    return markdown_table(["median (min to max)", *(lane.title for lane in lanes)], rows)


def _ratio(measure: Measure, ours: list[float], peer: list[float]) -> float:
    """Return how many times better our median is."""
    better, worse = (ours, peer) if measure.more_is_better else (peer, ours)
    return statistics.median(better) / statistics.median(worse)


def _as_json(lanes: list[Lane], results: dict[str, list[Round]], options: argparse.Namespace) -> dict[str, object]:
    settings = ("rounds", "streams", "responses", "max_batch_size", "seconds", "samples")
    return {
        "settings": {key: getattr(options, key) for key in settings},
        "lanes": {
            lane.key: {
                "title": lane.title,
                "versions": versions(lane.contender.python),
                "rounds": results[lane.key],
                "medians": {
                    key: statistics.median(found[key] for found in results[lane.key]) for key in results[lane.key][0]
                },
            }
            for lane in lanes
        },
    }


if __name__ == "__main__":
    sys.exit(main())
