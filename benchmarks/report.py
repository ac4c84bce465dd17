"""Writes the results of `compare.py` as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sharing import is_by_session
from workloads import STREAM, STREAM_LENGTH, WORKLOADS

Results = dict[str, Any]
"""What `compare.py` stores as JSON: see the README."""

Column = tuple[str, str, int]
"""A column of a table: its heading, the numbers' name, and how many decimals they have."""

MAIN = [
    ("HTTP tiny c1", "http/tiny/1/1/throughput", 0),
    ("HTTP tiny c64", "http/tiny/64/1/throughput", 0),
    ("HTTP image c1", "http/image/1/1/throughput", 0),
    ("HTTP image c64", "http/image/64/1/throughput", 0),
    ("gRPC tiny c1", "grpc/tiny/1/1/throughput", 0),
    ("gRPC tiny c64", "grpc/tiny/64/1/throughput", 0),
]
"""Columns of the main table."""

_CROWDED = [
    ("HTTP tiny c256", "http/tiny/256/1/throughput", 0),
    ("HTTP tiny c1024", "http/tiny/1024/1/throughput", 0),
    ("HTTP image c256", "http/image/256/1/throughput", 0),
]
_LIFE = [
    ("ready, s", "ready_s", 2),
    ("first request, ms", "first_ms", 1),
    ("stop, s", "stop_s", 2),
    ("ten models ready, s", "ten/ready_s", 2),
    ("ten models' stop, s", "ten/stop_s", 2),
]
_MEMORY = [
    ("memory idle, MB", "memory_mb", 0),
    ("a bare Python process with NumPy, MB", "bare_mb", 0),
    ("memory idle beyond that, MB", "beyond_mb", 0),
    ("memory after load, MB", "loaded_mb", 0),
]
_OURS = ("ours", "repository")
_LONGEST_REASON = 300
_MANY = 64
"""The number of requests at a time from which waiting for each other is most of their latency."""


def machine() -> dict[str, str]:
    """Describe where and when something is measured."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "shared": "by session" if is_by_session() else "by thread",
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",  # noqa: TID251
    }


def heading(what: str, rounds: int, where: dict[str, str] | None = None) -> str:
    """Describe what was measured, how often, where and when."""
    where = where or machine()
    often = f"{rounds} rounds in turn" if rounds != 1 else "1 round"
    cores = f"{where['processor']}, {where['cores']} cores, shared {where['shared']}"
    return f"{what}; {often}; {cores}; Linux {where['kernel']}; {where['date']}."


def spread(values: Sequence[float], digits: int) -> str:
    """Write the median, and in brackets the lowest and the highest where there are more."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"**{middle}** ({low} to {high})" if len(values) > 1 else middle


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; all but the first column hold numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_report(results: Results, folder: Path) -> str:
    """Write ``report.md``.

    Args:
        results: as `compare.py` stores them.
        folder: where it goes.

    Returns:
        Its text.
    """
    intro = heading(f"PyTriton at {results['commit']}", results["rounds"], results["machine"])
    more = (
        ""
        if results["main_rounds"] == results["rounds"]
        else f"{results['main_rounds']} rounds of what the first table shows. "
    )
    parts = [f"{intro} {more}Medians, with the lowest and the highest in brackets; cN: N requests at a time."]
    parts += [f"## {title}\n\n{body}" for title, body in _sections(results) if body]
    text = "\n\n".join(parts) + "\n"
    (folder / "report.md").write_text(text)
    return text


def values(results: Results, name: str, key: str) -> list[float]:
    """Take a number from all rounds of a contender that have it."""
    return [found[key] for found in results["contenders"][name]["rounds"] if key in found]


def _sections(results: Results) -> list[tuple[str, str]]:
    """Return titles and texts; texts are empty where nothing was measured."""
    sections = [
        ("Throughput, requests/s", table(results, MAIN)),
        ("PyTriton's throughput against others'", _ratios(results, MAIN)),
        ("PyTriton's throughput against others', many connections", _ratios(results, _CROWDED)),
    ]
    for workload, title in _titles().items():
        sections += _sections_of(results, workload, title)
    counts = _parts(results, "http/tiny/", 3)
    columns = [(f"{count} instances", f"http/tiny/64/{count}/throughput", 0) for count in counts]
    sections += [
        ("HTTP, tiny, c64, by instances: requests/s", table(results, columns) if len(counts) > 1 else ""),
        ("BLS of the tiny model, c1", table(results, [("requests/s", "bls/throughput", 0), ("ms", "bls/mean_ms", 3)])),
        ("Start and stop", table(results, _LIFE)),
        ("Memory", table(results, _MEMORY)),
        ("Requests to each server", bullets(_protocol_of(results))),
        ("Failed", bullets(failures(results))),
        ("Left out", bullets(left_out(results))),
    ]
    return sections


def _titles() -> dict[str, str]:
    titles = {name: workload.title for name, workload in WORKLOADS.items()}
    return titles | {STREAM: f"streams ({STREAM_LENGTH} responses per request)"}


def _sections_of(results: Results, workload: str, title: str) -> list[tuple[str, str]]:
    concurrencies = _parts(results, f"http/{workload}/", 2)
    throughput = [(f"c{c}", f"http/{workload}/{c}/1/throughput", 0) for c in concurrencies]
    latency = [
        (f"c{c} {name}", f"http/{workload}/{c}/1/{name}_ms", 2)
        for c in concurrencies
        if c in (1, 64, 1024)
        for name in ("mean", "p50", "p99")
    ]
    cpu = [(f"c{c}", f"http/{workload}/{c}/1/cpu_us", 0) for c in concurrencies]
    return [
        (f"HTTP, {title}: requests/s", table(results, throughput)),
        (f"HTTP, {title}: latency in ms", table(results, latency)),
        (f"HTTP, {title}: p99 of the latency as a multiple of its p50", _tails(results, workload, concurrencies)),
        (f"HTTP, {title}: µs of processor per request, in the server", table(results, cpu)),
    ]


def _parts(results: Results, prefix: str, position: int) -> list[int]:
    """Collect what is at one position of the names that have a prefix: concurrencies, or instances."""
    keys = {key for each in results["contenders"].values() for found in each["rounds"] for key in found}
    return sorted({int(key.split("/")[position]) for key in keys if key.startswith(prefix)})


def table(results: Results, columns: Sequence[Column]) -> str:
    """Write a row for each contender that has any of the columns' numbers; empty where nothing was measured."""
    columns = [column for column in columns if any(values(results, name, column[1]) for name in results["contenders"])]
    rows = []
    for name, each in results["contenders"].items():
        found = [(values(results, name, key), digits) for _, key, digits in columns]
        if any(numbers for numbers, _ in found):
            rows.append([each["title"], *(spread(numbers, digits) if numbers else "" for numbers, digits in found)])
    return markdown_table(["", *(title for title, _, _ in columns)], rows) if rows else ""


def _tails(results: Results, workload: str, concurrencies: Sequence[int]) -> str:
    """Write the 99th percentile as a multiple of the median, by round: how evenly requests are served."""
    shown = [c for c in concurrencies if c >= _MANY]
    rows = []
    for each in results["contenders"].values():
        cells = [_tail(each["rounds"], f"http/{workload}/{c}/1") for c in shown]
        if any(cells):
            rows.append([each["title"], *cells])
    return markdown_table(["", *(f"c{c}" for c in shown)], rows) if rows else ""


def _tail(rounds: Sequence[dict[str, float]], key: str) -> str:
    found = [each[f"{key}/p99_ms"] / each[f"{key}/p50_ms"] for each in rounds if f"{key}/p50_ms" in each]
    return spread(found, 1) if found else ""


def _ratios(results: Results, columns: Sequence[Column]) -> str:
    contenders = results["contenders"]
    rows = []
    for ours in (name for name in _OURS if name in contenders):
        for other in (name for name in contenders if name not in _OURS):
            cells = [ratio(results, ours, other, key) for _, key, _ in columns]
            if any(cells):
                rows.append([f"{contenders[ours]['title']} against {contenders[other]['title']}", *cells])
    return markdown_table(["", *(title for title, _, _ in columns)], rows) if rows else ""


def ratio(results: Results, ours: str, other: str, key: str) -> str:
    """Write the median of the rounds' ratios: a minute in which the machine is slow affects both."""
    contenders = results["contenders"]
    rounds = zip(contenders[ours]["rounds"], contenders[other]["rounds"], strict=True)
    ratios = [mine[key] / theirs[key] for mine, theirs in rounds if key in mine and key in theirs]
    if not ratios:
        return ""
    middle = statistics.median(ratios)
    return f"{middle:.0%}" if contenders[other]["bound"] else f"{middle:.2f}×"


def _protocol_of(results: Results) -> list[str]:
    lines = []
    for each in results["contenders"].values():
        notes = [
            each["protocol"],
            each["note"],
            ", ".join(f"{name} {which}" for name, which in each["versions"].items()),
        ]
        lines.append(f"{each['title']}: {'; '.join(filter(None, notes))}.")
    tools = ", ".join(f"{name} {version}" for name, version in results["tools"].items())
    return [*lines, f"The load: {tools}."]


def failures(results: Results) -> list[str]:
    """Write what failed, and why."""
    return [
        f"{each['title']}, round {failure['round']}, {failure['what']}: {_shortened(failure['why'])}"
        for each in results["contenders"].values()
        for failure in each["failed"]
    ]


def left_out(results: Results) -> list[str]:
    """Write what could not be installed, and why."""
    return [f"{name}: {_shortened(why)}" for name, why in results["missing"].items()]


def _shortened(reason: str) -> str:
    """Put a reason, which may be a log, on one line; the whole of it is in ``results.json``."""
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON // 2]} … {line[-_LONGEST_REASON // 2 :]}"


def bullets(lines: Iterable[str]) -> str:
    """Write a list."""
    return "\n".join(f"- {line}" for line in lines)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
