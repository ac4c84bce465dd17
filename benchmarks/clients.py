"""Measure the clients: what `ModelClient` adds to tritonclient, shared memory beside the socket, and the import.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from environments import REPOSITORY, Contender, SetupError, ours_in, prepare_ours, prepare_peer
from service import Service, ServiceError, serving

_SCRIPT = Path(__file__).with_name("ask_server.py")
_SMALL = 16
_LARGE = 2_500_000  # float32: 10 MB
_TIMEOUT_S = 600.0
_IMPORT = """
import time, numpy
started = time.perf_counter()
import pytriton.client
print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        title: what was measured.
        found: what was found.
        target: what it should be.
        met: whether it is.
    """

    title: str
    found: str
    target: str
    met: bool


def main() -> int:
    """Set up, measure, write the table."""
    options = _parse_arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    try:
        ours = ours_in(options.ours_python) if options.ours_python else prepare_ours(options.cache, options.python)
        peer = None if options.without_peer else prepare_peer(options.cache, options.python)
        rows = [*_overhead(ours, peer, options), *_shared_memory(ours, options), _import(ours, options)]
    except (SetupError, ServiceError) as error:
        print(f"clients.py: {error}", file=sys.stderr)
        return 1
    print("| | found | target | met |\n| --- | ---: | ---: | --- |")
    for row in rows:
        print(f"| {row.title} | {row.found} | {row.target} | {'yes' if row.met else '**no**'} |")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turn")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "build" / "benchmarks", help="kept between runs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="to make the environments with")
    parser.add_argument("--ours-python", type=Path, help="of an environment that has this project already")
    parser.add_argument("--without-peer", action="store_true", help="leave nvidia-pytriton's client out")
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    return options


def _overhead(ours: Contender, peer: Contender | None, options: argparse.Namespace) -> list[Row]:
    """What each side's `ModelClient` adds to a bare call, and whether ours is ever the slower one."""
    contenders = [ours] if peer is None else [ours, peer]
    rows = []
    with _service(ours, options, _SMALL) as service:
        for protocol in ("http", "grpc"):
            found: dict[str, dict[str, list[float]]] = {each.name: {"other": [], "ours": []} for each in contenders}
            for number in range(options.rounds):
                for contender in contenders:
                    times = _ask(contender, protocol, service, ["--size", str(_SMALL)])
                    for kind, seconds in times.items():
                        found[contender.name][kind].append(statistics.median(seconds))
                    _tell(f"{protocol}, round {number + 1}, {contender.title}", times)
            added = statistics.median(found["ours"]["ours"]) - statistics.median(found["ours"]["other"])
            rows.append(
                Row(
                    f"`ModelClient` beside tritonclient, {protocol}",
                    f"+{added * 1e6:.0f} µs",
                    "≤ 60 µs",
                    added <= 60e-6,
                )
            )
            if peer is not None:
                mine, theirs = (statistics.median(found[each.name]["ours"]) for each in (ours, peer))
                text = f"{mine * 1e6:.0f} µs : {theirs * 1e6:.0f} µs"
                rows.append(Row(f"`ModelClient` beside {peer.title}'s, {protocol}", text, "not slower", mine <= theirs))
    return rows


def _shared_memory(ours: Contender, options: argparse.Namespace) -> list[Row]:
    rows = []
    with _service(ours, options, _LARGE) as service:
        for protocol in ("http", "grpc"):
            arguments = ["--size", str(_LARGE), "--shared-memory", "--blocks", "10", "--calls", "10"]
            times = _ask(ours, protocol, service, arguments)
            _tell(f"{protocol}, 10 MB", times)
            socket, memory = (statistics.median(times[kind]) for kind in ("other", "ours"))
            found = f"{memory * 1e3:.1f} ms : {socket * 1e3:.1f} ms, {socket / memory:.1f} x"
            title = f"10 MB there and back, shared memory beside the socket, {protocol}"
            rows.append(Row(title, found, "≥ 3 x", socket >= 3 * memory))
    return rows


def _import(ours: Contender, options: argparse.Namespace) -> Row:
    seconds = statistics.median(float(_run(ours, ["-c", _IMPORT])) for _ in range(2 * options.rounds + 1))
    return Row("`import pytriton.client`, on top of NumPy", f"{seconds:.2f} s", "≤ 0.3 s", seconds <= 0.3)


def _service(ours: Contender, options: argparse.Namespace, size: int) -> AbstractContextManager[Service]:
    log = options.cache / "logs" / f"clients-{size}.log"
    return serving(ours.python, ours.variables, log, models=1, size=size)


def _ask(contender: Contender, protocol: str, service: Service, arguments: list[str]) -> dict[str, list[float]]:
    port = service.http_port if protocol == "http" else service.grpc_port
    found: dict[str, list[float]] = json.loads(
        _run(contender, [str(_SCRIPT), f"--protocol={protocol}", f"--port={port}", *arguments])
    )
    return found


def _run(contender: Contender, arguments: list[str]) -> str:
    command = [str(contender.python), *arguments]
    done = subprocess.run(command, env=contender.variables, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _tell(what: str, times: dict[str, list[float]]) -> None:
    shown = ", ".join(f"{kind} {statistics.median(seconds) * 1e6:.0f} µs" for kind, seconds in times.items())
    print(f"{what}: {shown}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
