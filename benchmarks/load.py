"""One measurement with wrk or perf_analyzer, in bounded time."""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from environments import PerfAnalyzer

TOKEN = "benchmark"
"""Access token of servers that restrict the statistics, which perf_analyzer reads."""

_WINDOWS = 3
_SCRIPT = Path(__file__).with_name("wrk.lua")
_SLACK_S = 60.0


class LoadError(RuntimeError):
    """The load generator gave no result, or the server responded with errors."""


@dataclass(frozen=True)
class Load:
    """The result of one measurement.

    Attributes:
        throughput: requests per second.
        mean_ms: mean latency as the client sees it, in milliseconds.
        p50_ms: median of it.
        p99_ms: 99th percentile of it.
    """

    throughput: float
    mean_ms: float
    p50_ms: float
    p99_ms: float


def wrk_version() -> str:
    """Return the version of wrk.

    Raises:
        LoadError: if there is no wrk.
    """
    try:
        said = subprocess.run(["wrk", "-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    except FileNotFoundError as error:
        raise LoadError("wrk, the load generator for HTTP, is not installed (Debian: apt install wrk)") from error
    return " ".join(said.split()[1:2])


def measure_http(url: str, request: tuple[bytes, str, int], concurrency: int, seconds: int, events: int = 0) -> Load:
    """Keep a number of requests in flight over HTTP, with wrk on one thread.

    Args:
        url: where they are sent.
        request: the body, its type, and the size of the KServe header in it.
        concurrency: connections, with one request at a time on each.
        seconds: how long.
        events: how many a response has; 0 where it is not a stream.

    Raises:
        LoadError: if wrk fails, if a response is incomplete, or if the server refuses a request.
    """
    body, kind, header_size = request
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout=30s"]
        command += ["-s", str(_SCRIPT), url, "--", file.name, kind, str(header_size), str(events)]
        output = _run(command, None, seconds + _SLACK_S)
    found = json.loads(output.rstrip().rpartition("\n")[2])
    errors = ", ".join(f"{count} by {kind}" for kind, count in found["errors"].items() if count)
    if errors:
        raise LoadError(f"of {found['requests']} requests to {url} failed: {errors}")
    if not found["requests"]:
        raise LoadError(f"no response from {url} within {seconds} s")
    return Load(
        throughput=found["requests"] / found["duration_us"] * 1e6,
        mean_ms=found["mean_us"] / 1000,
        p50_ms=found["p50_us"] / 1000,
        p99_ms=found["p99_us"] / 1000,
    )


def measure_grpc(perf_analyzer: PerfAnalyzer, grpc_port: int, model: str, concurrency: int, window_s: float) -> Load:
    """Keep a number of requests in flight over gRPC for three windows, with perf_analyzer.

    Args:
        perf_analyzer: the load generator.
        grpc_port: the server's port for gRPC, on 127.0.0.1.
        model: name of the model to call.
        concurrency: requests in flight at any time.
        window_s: length of a window in seconds.

    Raises:
        LoadError: if perf_analyzer fails or does not end.
    """
    target = ["-H", f"triton-grpc-protocol-triton-access-token:{TOKEN}"]
    target += ["-m", model, "-i", "grpc", "-u", f"127.0.0.1:{grpc_port}", "--async"]
    target += ["--concurrency-range", str(concurrency)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.csv")
        # It may report whatever three windows give: the spread over the rounds shows how steady that is.
        windows = ["-p", str(round(window_s * 1000)), "-r", str(_WINDOWS), "-s", "999"]
        command = [str(perf_analyzer.binary), *target, *windows, "-f", str(report)]
        output = _run(command, perf_analyzer.variables, 2 * _WINDOWS * window_s + _SLACK_S)
        rows = list(csv.DictReader(report.read_text().splitlines())) if report.exists() else []
    if len(rows) != 1:
        raise LoadError(f"perf_analyzer reported {len(rows)} results in place of one:\n{output}")
    row = rows[0]
    return Load(
        throughput=float(row["Inferences/Second"]),
        mean_ms=float(row["Avg latency"]) / 1000 if "Avg latency" in row else float("nan"),
        p50_ms=float(row["p50 latency"]) / 1000,
        p99_ms=float(row["p99 latency"]) / 1000,
    )


def _run(command: list[str], variables: dict[str, str] | None, timeout_s: float) -> str:
    try:
        finished = subprocess.run(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"`{' '.join(command)}` did not end within {timeout_s:.0f} s") from error
    if finished.returncode != 0:
        raise LoadError(f"`{' '.join(command)}` failed:\n{finished.stdout}")
    return finished.stdout
