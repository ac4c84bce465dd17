"""Measures the gateway side by side with FastAPI, LitServe and BentoML: JSON, images and streams over HTTP.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from command import parser, positive, run
from contenders import CONTENDERS, Places
from environments import Contender, versions
from load import Load, LoadError, measure_http
from report import heading, markdown_table, spread
from service import Service, running
from web_functions import IMAGE, STREAM, TINY, TOKENS, path, request

_WARM_UP_S = 1
_STREAM_FACTOR = 5  # streams are measured this much longer, because some contenders are slow
_BURST_TOKENS = 50
_OURS = "gateway"
_ENVIRONMENTS = {_OURS: "ours", "fastapi_threads": "fastapi"}  # of the contenders of `compare.py`, if not the same name
_SCRIPTS = {
    _OURS: ["web_gateway.py"],
    "fastapi": ["web_fastapi.py"],
    "fastapi_threads": ["web_fastapi.py", "--app=app_with_threads"],
    "litserve": ["web_litserve.py", "--function={function}"],
    "bentoml": ["web_bentoml.py"],
}
_DONE_EVENTS = {_OURS: 1}  # after the tokens
_RESTLESS = ("litserve",)  # it takes processor time while it has no requests


@dataclass(frozen=True)
class Measure:
    """A row of the table.

    Attributes:
        key: Its name in the JSON file.
        title: Its name in the table.
        function: Which is called, of `web_functions.py`.
        connections: Requests at a time.
        tokens: Of each stream.
    """

    key: str
    title: str
    function: str
    connections: int
    tokens: int = 0


_MEASURES = [
    Measure("tiny_1", "16 numbers as JSON, 1 at a time", TINY, 1),
    Measure("tiny_64", "16 numbers as JSON, 64 at a time", TINY, 64),
    Measure("image_64", "an image as `.npy`, 64 at a time", IMAGE, 64),
    Measure("stream_64", f"streams of {TOKENS} tokens, 64 at a time", STREAM, 64, TOKENS),
    Measure("stream_1000", f"streams of {_BURST_TOKENS} tokens, 1,000 at a time", STREAM, 1000, _BURST_TOKENS),
]

Rounds = dict[str, list[float]]
"""Requests per second of each round, by contender."""


def main() -> int:
    """Installs the contenders, measures in rounds, and writes the table."""
    options = _parse_arguments()
    return run("gateway.py", lambda: _compare(options))


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    names = [*_SCRIPTS]
    made.add_argument("--contenders", nargs="+", choices=names, default=names, metavar="NAME")
    keys = [measure.key for measure in _MEASURES]
    made.add_argument("--measures", nargs="+", choices=keys, default=keys, metavar="NAME")
    made.add_argument("--rounds", type=positive, default=5, help="how often each is measured, in turn")
    made.add_argument("--seconds", type=positive, default=3, help="of one measurement; streams take five times that")
    made.add_argument("--results", type=Path, help="a JSON file for all numbers")
    return made.parse_args()


def _compare(options: argparse.Namespace) -> None:
    contenders = {name: _prepared(name, options) for name in options.contenders}
    found = {
        measure.key: _measured(measure, contenders, options) for measure in _MEASURES if measure.key in options.measures
    }
    if options.results is not None:
        options.results.write_text(json.dumps(found, indent=1) + "\n")
    print(heading("Requests per second, and how many times those of the others the gateway's are", options.rounds))
    for name, contender in contenders.items():
        print(f"- {name}: {', '.join(' '.join(pair) for pair in versions(contender.python).items())}")
    print(f"\n{_table(found, list(contenders))}")


def _prepared(name: str, options: argparse.Namespace) -> Contender:
    places = Places(options.cache, options.python, options.ours_python)
    return CONTENDERS[_ENVIRONMENTS.get(name, name)](places).contender


def _measured(measure: Measure, contenders: dict[str, Contender], options: argparse.Namespace) -> Rounds:
    rounds: Rounds = {name: [] for name in contenders}
    with _serving(measure.function, contenders, options.cache / "logs") as services:
        for _ in range(options.rounds):
            for name, service in services.items():
                with service.awake() if name in _RESTLESS else contextlib.nullcontext():
                    load = _load(measure, name, service, options.seconds)
                rounds[name].append(load.throughput)
                print(f"{measure.key}, {name}: {load.throughput:.0f}/s, p99 {load.p99_ms:.1f} ms", file=sys.stderr)
    return rounds


@contextlib.contextmanager
def _serving(function: str, contenders: dict[str, Contender], logs: Path) -> Iterator[dict[str, Service]]:
    """Starts all contenders with a function; those that would disturb the others are paused."""
    services: dict[str, Service] = {}
    with contextlib.ExitStack() as stack:
        for name, contender in contenders.items():
            log = logs / f"web-{name}-{function}.log"
            script, *arguments = [part.format(function=function) for part in _SCRIPTS[name]]
            serving = running(script, arguments, contender.python, contender.variables, log)
            services[name] = stack.enter_context(serving)
            if name in _RESTLESS:
                services[name].pause()
        yield services


def _load(measure: Measure, name: str, service: Service, seconds: int) -> Load:
    try:
        url = f"http://127.0.0.1:{service.http_port}{path(measure.function)}"
        body = (*request(measure.function, name, measure.tokens), 0)
        events = measure.tokens + _DONE_EVENTS.get(name, 0) if measure.tokens else 0
        with contextlib.suppress(LoadError):  # a failure repeats below
            measure_http(url, body, measure.connections, _WARM_UP_S, events)
        return measure_http(url, body, measure.connections, seconds * (_STREAM_FACTOR if events else 1), events)
    except LoadError as error:
        print(f"{measure.key}, {name}: {error}", file=sys.stderr)
        return Load(float("nan"), float("nan"), float("nan"), float("nan"))


def _table(found: dict[str, Rounds], contenders: list[str]) -> str:
    rows = [
        [measure.title, *(_cell(name, found[measure.key]) for name in contenders)]
        for measure in _MEASURES
        if measure.key in found
    ]
    return markdown_table(["median (min to max)", *contenders], rows)


def _cell(name: str, rounds: Rounds) -> str:
    """Returns a contender's numbers, and the median ratio of rounds that were measured one right after the other."""
    text = spread(rounds[name], 0)
    if name == _OURS or _OURS not in rounds:
        return text
    ratio = statistics.median(own / other for own, other in zip(rounds[_OURS], rounds[name], strict=True))
    return f"{text} {ratio:.2f}x"


if __name__ == "__main__":
    sys.exit(main())
