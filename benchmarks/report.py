"""What a comparison found, as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from workloads import WORKLOADS

Results = dict[str, Any]

_TARGETS = [
    ("HTTP tiny c1", "http/tiny/1/1"),
    ("HTTP tiny c64", "http/tiny/64/1"),
    ("HTTP image c1", "http/image/1/1"),
    ("HTTP image c64", "http/image/64/1"),
    ("gRPC tiny c1", "grpc/tiny/1/1"),
    ("gRPC tiny c64", "grpc/tiny/64/1"),
]


def machine() -> dict[str, str]:
    """Say where and when something is measured."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
    }


def heading(what: str, rounds: int) -> str:
    """Say what was measured, how often, where and when."""
    where = machine()
    return f"{what}; {rounds} rounds in turn; {where['processor']}, {where['cores']} cores; {where['date']}."


def spread(values: list[float], digits: int) -> str:
    """Write the median, and in brackets the lowest and the highest."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"**{middle}** ({low} to {high})"


def write_report(results: Results, folder: Path) -> str:
    """Write ``report.md``.

    Args:
        results: as `compare.py` keeps them.
        folder: where it goes.

    Returns:
        Its text.
    """
    first = next(iter(results["contenders"].values()))
    where = results["machine"]
    parts = [
        f"{len(first['rounds'])} rounds in turn on {where['processor']}, {where['cores']} cores, Linux "
        f"{where['kernel']}, {where['date']}. Medians, with the lowest and the highest in brackets.",
        *_sections(results),
        "## Versions\n\n"
        + "\n".join(
            f"- {each['title']}: " + ", ".join(f"{name} {version}" for name, version in each["versions"].items())
            for each in results["contenders"].values()
        ),
    ]
    if results["missing"]:
        parts.append("## Left out\n\n" + "\n".join(f"- {name}: {why}" for name, why in results["missing"].items()))
    text = "\n\n".join(parts) + "\n"
    (folder / "report.md").write_text(text)
    return text


def _sections(results: Results) -> list[str]:
    sections = []
    columns = [(title, f"{key}/throughput", 0) for title, key in _TARGETS]
    sections.append("## Throughput, requests/s\n\n" + _table(results, columns))
    ratios = _ratios(results)
    if ratios:
        sections.append("## PyTriton's throughput against others'\n\n" + ratios)
    concurrencies = sorted({int(key.split("/")[2]) for key in _keys(results) if key.startswith("http/")})
    for workload in [*(each.name for each in WORKLOADS.values()), "stream"]:
        columns = [(f"c{c}", f"http/{workload}/{c}/1/throughput", 0) for c in concurrencies]
        title = WORKLOADS[workload].title if workload in WORKLOADS else "streams of 32 responses"
        if table := _table(results, columns):
            sections.append(f"## HTTP, {title}: requests/s\n\n{table}")
        columns = [
            (f"c{c} {name.removesuffix('_ms')}", f"http/{workload}/{c}/1/{name}", 2)
            for c in concurrencies
            if c in (1, 64)
            for name in ("mean_ms", "p50_ms", "p99_ms")
        ]
        if table := _table(results, columns):
            sections.append(f"## HTTP, {title}: latency in ms\n\n{table}")
        columns = [(f"c{c}", f"http/{workload}/{c}/1/cpu_us", 0) for c in concurrencies]
        if table := _table(results, columns):
            sections.append(f"## HTTP, {title}: µs of processor per request, in the server\n\n{table}")
    counts = sorted({int(key.split("/")[3]) for key in _keys(results) if key.startswith("http/tiny/")})
    if len(counts) > 1:
        columns = [(f"{count} instances", f"http/tiny/64/{count}/throughput", 0) for count in counts]
        sections.append("## HTTP, tiny, c64, by instances: requests/s\n\n" + _table(results, columns))
    columns = [
        ("ready, s", "ready_s", 2),
        ("first request, ms", "first_ms", 1),
        ("stop, s", "stop_s", 2),
        ("ten models ready, s", "ten/ready_s", 2),
        ("ten models' stop, s", "ten/stop_s", 2),
        ("memory idle, MB", "memory_mb", 0),
        ("memory after load, MB", "loaded_mb", 0),
    ]
    if table := _table(results, columns):
        sections.append("## Life\n\n" + table)
    if table := _table(results, [("requests/s", "bls/throughput", 0), ("mean, ms", "bls/mean_ms", 3)]):
        sections.append("## BLS of the tiny model, c1\n\n" + table)
    return sections


def _keys(results: Results) -> set[str]:
    return {key for each in results["contenders"].values() for found in each["rounds"] for key in found}


def values(results: Results, name: str, key: str) -> list[float]:
    """Take a number from all rounds of a contender that have it."""
    rounds = results["contenders"].get(name, {"rounds": []})["rounds"]
    return [found[key] for found in rounds if key in found]


def _table(results: Results, columns: list[tuple[str, str, int]]) -> str:
    keys = _keys(results)
    columns = [column for column in columns if column[1] in keys]
    if not columns:
        return ""
    rows = [["", *(title for title, _, _ in columns)], ["---", *["---:"] * len(columns)]]
    for name, each in results["contenders"].items():
        cells = []
        for _, key, digits in columns:
            found = values(results, name, key)
            cells.append(spread(found, digits) if found else "")
        if any(cells):
            rows.append([each["title"], *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _ratios(results: Results) -> str:
    if "ours" not in results["contenders"]:
        return ""
    keys = _keys(results)
    columns = [(title, f"{key}/throughput") for title, key in _TARGETS if f"{key}/throughput" in keys]
    rows = [["", *(title for title, _ in columns)], ["---", *["---:"] * len(columns)]]
    for ours in ("ours", "repository"):
        for name, each in results["contenders"].items():
            if name in ("ours", "repository") or ours not in results["contenders"]:
                continue
            cells = []
            for _, key in columns:
                mine, theirs = values(results, ours, key), values(results, name, key)
                if not mine or not theirs:
                    cells.append("")
                    continue
                ratio = statistics.median(mine) / statistics.median(theirs)
                cells.append(f"{ratio:.0%}" if each["bound"] else f"{ratio:.2f}×")
            if any(cells):
                rows.append([f"{results['contenders'][ours]['title']} against {each['title']}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) if len(rows) > 2 else ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
