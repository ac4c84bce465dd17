"""Measure the clients: their calls beside those of tritonclient, shared memory beside the socket, and the import.

Writes a Markdown table to stdout; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from command import ours, parser, positive, run
from environments import Contender, prepare_peer
from load import LoadError
from report import heading, markdown_table
from service import Service, running

_CLIENTS = [
    ("http", "ModelClient", "tritonclient.http", 1.0),
    ("http", "AsyncioModelClient", "tritonclient.http.aio", 1.0),
    ("grpc", "ModelClient", "tritonclient.grpc", 1.1),
    ("grpc", "AsyncioModelClient", "tritonclient.grpc.aio", 1.15),
]
"""Protocol, client, the client of tritonclient that does the same, and how many times as long a call may take."""
_SCRIPT = Path(__file__).with_name("send_requests.py")
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
    return run("clients.py", lambda: _measure(options))


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--turns", type=positive, default=200, help="how often each is measured, one after the other")
    made.add_argument("--without-peer", action="store_true", help="leave nvidia-pytriton's client out")
    return made.parse_args()


def _measure(options: argparse.Namespace) -> None:
    mine = ours(options)
    peer = None if options.without_peer else prepare_peer(options.cache, options.python)
    rows = [*_beside_tritonclient(mine, peer, options), *_shared_memory(mine, options), _import(mine)]
    print(heading("Calls of the clients, medians", options.turns))
    print()
    cells = [[row.title, row.found, row.target, "yes" if row.met else "**no**"] for row in rows]
    print(markdown_table(["", "found", "target", "met"], cells))


def _beside_tritonclient(mine: Contender, peer: Contender | None, options: argparse.Namespace) -> list[Row]:
    """How long calls take beside those of tritonclient, and whether they are slower than the peer's."""
    rows = []
    with _service(mine, options, "tiny") as service:
        for protocol, client, bare_client, limit in _CLIENTS:
            arguments = ["--workload=tiny", "--calls=100"] + ["--asyncio"] * client.startswith("Asyncio")
            with contextlib.ExitStack() as stack:
                our_client = stack.enter_context(_sender(mine, protocol, service, arguments))
                theirs = peer and stack.enter_context(_sender(peer, protocol, service, arguments))
                turns = []
                for number in range(options.turns):
                    turns.append((our_client.turn(), theirs.turn() if theirs else {"other": 0.0, "ours": 0.0}))
                    if number % 20 == 0:
                        print(f"{client}, {protocol}, turn {number + 1}: {turns[-1]}", file=sys.stderr)
            bare, own = (statistics.median(each[kind] for each, _ in turns) for kind in ("other", "ours"))
            ratio = statistics.median(each["ours"] / each["other"] for each, _ in turns)
            found = f"{_microseconds(own)} : {_microseconds(bare)}, {ratio:.2f} x"
            rows.append(Row(f"`{client}` beside `{bare_client}`", found, f"at most {limit} x", ratio <= limit))
            if peer is not None:
                other = statistics.median(each["ours"] for _, each in turns)
                title = f"`{client}` beside {peer.title}'s, {protocol}"
                found = f"{_microseconds(own)} : {_microseconds(other)}, {own / other:.2f} x"
                rows.append(Row(title, found, "not slower", own <= other))
    return rows


def _shared_memory(mine: Contender, options: argparse.Namespace) -> list[Row]:
    rows = []
    with _service(mine, options, "large") as service:
        for protocol in ("http", "grpc"):
            arguments = ["--workload=large", "--calls=10", "--shared-memory"]
            with _sender(mine, protocol, service, arguments) as sender:
                turns = [sender.turn() for _ in range(max(1, options.turns // 20))]
            socket, memory = (statistics.median(turn[kind] for turn in turns) for kind in ("other", "ours"))
            found = f"{memory * 1e3:.1f} ms : {socket * 1e3:.1f} ms, {socket / memory:.1f} x"
            title = f"10 MB there and back, shared memory beside the socket, {protocol}"
            rows.append(Row(title, found, "at least 3 x", socket >= 3 * memory))
            print(f"{title}: {found}", file=sys.stderr)
    return rows


def _import(mine: Contender) -> Row:
    command = [str(mine.python), "-c", _IMPORT]
    seconds = statistics.median(
        float(subprocess.run(command, env=mine.variables, capture_output=True, text=True, check=True).stdout)
        for _ in range(11)
    )
    return Row("`import pytriton.client`, on top of NumPy", f"{seconds:.2f} s", "at most 0.3 s", seconds <= 0.3)


def _service(mine: Contender, options: argparse.Namespace, workload: str) -> AbstractContextManager[Service]:
    log = options.cache / "logs" / f"clients-{workload}.log"
    return running("serve_pytriton.py", [f"--workload={workload}"], mine.python, mine.variables, log)


class _Sender:
    """A process of a contender that sends requests in turns."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read()

    def turn(self) -> dict[str, float]:
        """Have it do two blocks of calls; returns seconds per call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoadError(f"`{self._process.args!r}` ended with status {self._process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found


@contextlib.contextmanager
def _sender(contender: Contender, protocol: str, service: Service, arguments: list[str]) -> Iterator[_Sender]:
    port = service.http_port if protocol == "http" else service.grpc_port
    command = [str(contender.python), str(_SCRIPT), f"--protocol={protocol}", f"--port={port}", *arguments]
    with subprocess.Popen(
        command, env=contender.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _Sender(process)
        finally:
            process.kill()


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


if __name__ == "__main__":
    sys.exit(main())
