"""One measurement with perf_analyzer, in bounded time."""

from __future__ import annotations

import csv
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from environments import PerfAnalyzer

_WINDOWS = 3
_WARM_UP_REQUESTS_PER_CONNECTION = 100
_SLACK_S = 60.0


class LoadError(RuntimeError):
    """perf_analyzer gave no result."""


@dataclass(frozen=True)
class Load:
    """What one measurement found.

    Attributes:
        throughput: inferences per second.
        p50_ms: median latency as the client sees it, in milliseconds.
        p99_ms: 99th percentile of it.
    """

    throughput: float
    p50_ms: float
    p99_ms: float


def measure_load(perf_analyzer: PerfAnalyzer, grpc_port: int, model: str, concurrency: int, window_s: float) -> Load:
    """Keep a number of requests in flight for three windows, after a warm-up.

    Args:
        perf_analyzer: the load generator.
        grpc_port: where the server answers gRPC, on 127.0.0.1.
        model: name of the model to call.
        concurrency: requests in flight at any time.
        window_s: length of a window in seconds.

    Raises:
        LoadError: if perf_analyzer fails or does not end.
    """
    requests = max(500, _WARM_UP_REQUESTS_PER_CONNECTION * concurrency)
    target = ["-m", model, "-i", "grpc", "-u", f"127.0.0.1:{grpc_port}", "--async"]
    target += ["--concurrency-range", str(concurrency)]
    _run(perf_analyzer, [*target, "--request-count", str(requests)], _SLACK_S)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.csv")
        # It may report whatever three windows give: the spread over the rounds is what tells how steady that is.
        windows = ["-p", str(round(window_s * 1000)), "-r", str(_WINDOWS), "-s", "999"]
        output = _run(perf_analyzer, [*target, *windows, "-f", str(report)], 2 * _WINDOWS * window_s + _SLACK_S)
        rows = list(csv.DictReader(report.read_text().splitlines())) if report.exists() else []
    if len(rows) != 1:
        raise LoadError(f"perf_analyzer reported {len(rows)} results in place of one:\n{output}")
    row = rows[0]
    return Load(
        throughput=float(row["Inferences/Second"]),
        p50_ms=float(row["p50 latency"]) / 1000,
        p99_ms=float(row["p99 latency"]) / 1000,
    )


def _run(perf_analyzer: PerfAnalyzer, options: list[str], timeout_s: float) -> str:
    command = [str(perf_analyzer.binary), *options]
    try:
        finished = subprocess.run(
            command,
            env=perf_analyzer.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"`{' '.join(command)}` did not end within {timeout_s:.0f} s") from error
    if finished.returncode != 0:
        raise LoadError(f"`{' '.join(command)}` failed:\n{finished.stdout}")
    return finished.stdout
