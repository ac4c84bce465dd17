"""What `growth.py` measures: a curve for each quantity that can grow."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from contenders import build_baseline
from environments import clean_environment
from growth_payloads import measure_payload
from instructions import python_instructions
from load import LoadError, measure_http
from service import Service, running
from worker import Rig, batched, listed, per_batch_us
from workloads import WORKLOADS

Numbers = dict[str, float]
"""What was found at a point of a curve, by the keys of its series."""

_FOLDER = Path(__file__).parent
_WARM_UP_S = 1
_STREAM_RESPONSES = 100
_TIMEOUT_S = 120.0
_OPEN_FILES = 12_000


@dataclass(frozen=True)
class Series:
    """One number of a curve, at all of its points.

    Attributes:
        key: its name in the results.
        title: its name in tables and plots, with the unit.
        kind: ``total``: what all of them cost together, which may grow with their number; ``each``: what one costs,
            which may not grow; ``rate``: how much is done in a second, which may not fall; ``note``: not judged.
        digits: decimals in the table.
        at_most: a limit of the value, from the point ``since`` on.
        at_least: the other limit.
        since: the first point where a limit counts.
        until: the last one.
    """

    key: str
    title: str
    kind: str
    digits: int = 0
    at_most: float | None = None
    at_least: float | None = None
    since: int = 0
    until: int = sys.maxsize


@dataclass(frozen=True)
class Setting:
    """How curves are measured.

    Attributes:
        seconds: length of one measurement.
        cache: folder for logs, and for what is built.
    """

    seconds: int
    cache: Path

    def serving(self, what: str, count: int, *more: str) -> AbstractContextManager[Service]:
        """Have `serve_growth.py` serve a number of something during a ``with`` block."""
        return self.running("serve_growth.py", f"{what}-{count}", what, f"--count={count}", *more)

    def baseline(self) -> str:
        """Build the backend that responds immediately; returns the argument that makes a server load it, too."""
        return f"--backends={build_baseline(self.cache)}"

    def running(self, script: str, name: str, *arguments: str) -> AbstractContextManager[Service]:
        """Have a script serve during a ``with`` block, with a log of this name."""
        log = self.cache / "logs" / f"growth-{name}.log"
        return running(script, arguments, Path(sys.executable), clean_environment(), log)


Measure = Callable[[Setting, Sequence[int]], Iterator[tuple[int, Numbers]]]
"""Measures a curve once: yields its points, and what is found there."""


@dataclass(frozen=True)
class Curve:
    """A quantity that can grow, and what depends on it.

    Attributes:
        name: its name in options and files.
        title: what grows.
        points: how many there are.
        quick: fewer of them, for a first impression.
        series: what is found at each point.
        measure: measures it once.
        rounds: the most rounds that make sense: what takes long, or is an exact count, is measured once.
    """

    name: str
    title: str
    points: tuple[int, ...]
    quick: tuple[int, ...]
    series: tuple[Series, ...]
    measure: Measure = field(repr=False)
    rounds: int = sys.maxsize


def _models(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    for count in points:
        with setting.serving("models", count) as service:
            found = {"ready_s": service.ready_s, "memory_mb": service.memory_mb()}
            found |= {f"c1_{key}": value for key, value in _send(service, 1, setting.seconds).items()}
            service.stop()
            yield count, found | {"stop_s": service.stop_s}


def _instances(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    for count in points:
        with setting.serving("instances", count, setting.baseline()) as service:
            found: Numbers = {}
            for concurrency in (1, 64):
                for prefix, model in (("", "tiny"), ("bare_", "baseline")):
                    sent = _send(service, concurrency, setting.seconds, model)
                    found |= {f"{prefix}c{concurrency}_{key}": value for key, value in sent.items()}
            yield count, found


def _idle_connections(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    _allow_open_files()
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(setting.serving("models", 1))
        _send(service, 1, _WARM_UP_S)
        before_mb = service.memory_mb()
        count = 0
        for point in points:
            while count < point:
                stack.enter_context(contextlib.closing(_idle_connection(service.http_port)))
                count += 1
            memory_kb = (service.memory_mb() - before_mb) * 1e3
            found = {f"c1_{key}": value for key, value in _send(service, 1, setting.seconds).items()}
            yield point, found | {"memory_kb": memory_kb, "each_kb": memory_kb / count}


def _idle_connection(port: int) -> http.client.HTTPConnection:
    """Open a connection that stays open, after one request on it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    connection.request("GET", "/v2/health/live")
    connection.getresponse().read()
    assert connection.sock is not None
    return connection


def _allow_open_files() -> None:
    """Raise the limit on open files for this process and its children as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _busy_connections(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    _allow_open_files()
    with setting.serving("models", 1, setting.baseline()) as service:
        for count in points:
            bare = {f"bare_{key}": value for key, value in _send(service, count, setting.seconds, "baseline").items()}
            yield count, bare | _send(service, count, setting.seconds)


def _streams(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    found: dict[int, Numbers] = {point: {} for point in points}
    for model in ("async", "batch"):
        arguments = [f"--model={model}", *([f"--max-in-flight={max(points)}"] if model == "async" else [])]
        with setting.running("serve_streams.py", f"streams-{model}", *arguments) as service:
            target = (f"--port={service.grpc_port}", f"--model={model}")
            for count in points:
                streams = (*target, f"--streams={count}", f"--responses={_STREAM_RESPONSES}")
                load = _stream("throughput", *streams, f"--seconds={setting.seconds}")
                begun = statistics.median(_stream("burst", *streams)["last_stream_began_ms"] for _ in range(3))
                found[count][f"{model}_responses_per_s"] = load["responses_per_s"]
                found[count][f"{model}_first_ms"] = begun
    yield from found.items()


def _stream(*arguments: str) -> Numbers:
    """Open streams from a separate process."""
    command = [sys.executable, str(_FOLDER / "stream_client.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise LoadError(f"`{' '.join(command)}` failed:\n{done.stderr}")
    found: Numbers = json.loads(done.stdout)
    return found


def _payloads(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    with setting.serving("bytes", 1, setting.baseline()) as service:
        for size in points:
            yield size, measure_payload(service, size)


def _chain(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    for count in points:
        with setting.serving("chain", count) as service:
            yield count, _send(service, 1, setting.seconds)


def _batch(_setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    for count in points:
        found: Numbers = {}
        for name, infer_func in (("batch", batched), ("list", listed)):
            rig = Rig(infer_func, 16, count)
            found[f"{name}_us"] = min(per_batch_us(rig, 9)) / count
            found[f"{name}_instructions"] = python_instructions(rig.serve) / count
        yield count, found


def _processes(setting: Setting, points: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
    cores = len(os.sched_getaffinity(0))
    alone = 0.0
    for count in points:
        with setting.serving("processes", count) as service:
            rate = _send(service, 4 * count, 2 * setting.seconds)["per_s"]
            alone = alone or rate / count
            yield count, {"per_s": rate, "efficiency": 100 * rate / (alone * min(count, cores))}


def _send(service: Service, concurrency: int, seconds: int, model: str = "tiny") -> Numbers:
    """Send small requests over HTTP, a number at a time, and measure what they take."""
    body, header_size = WORKLOADS["tiny"].kserve()
    request = (body, "application/octet-stream", header_size)
    url = f"http://127.0.0.1:{service.http_port}/v2/models/{model}"
    measure_http(f"{url}/infer", request, concurrency, _WARM_UP_S)
    batches, cpu_s, switches = _counts(url), service.cpu_s(), service.context_switches()
    load = measure_http(f"{url}/infer", request, concurrency, seconds)
    used_s, switched = service.cpu_s() - cpu_s, service.context_switches() - switches
    requests, executions = (after - before for before, after in zip(batches, _counts(url), strict=True))
    return {
        "per_s": load.throughput,
        "us": load.p50_ms * 1e3,
        "p99_ms": load.p99_ms,
        "cpu_us": used_s * 1e6 / requests,
        "switches": switched / requests,
        "batch": requests / executions,
    }


def _counts(url: str) -> tuple[int, int]:
    """Read from Triton how many requests and batches there have been."""
    with urllib.request.urlopen(f"{url}/stats", timeout=_TIMEOUT_S) as response:
        found = json.load(response)["model_stats"][0]
    return found["inference_count"], found["execution_count"]


_PAYLOAD_SERIES = (
    Series("http_ms", "HTTP, ms", "total", 2),
    Series("bare_http_ms", "the same without us, ms", "note", 2),
    Series("grpc_ms", "gRPC, ms", "total", 2),
    Series("bare_grpc_ms", "the same without us, ms", "note", 2),
    Series("shm_ms", "shared memory, ms", "total", 2),
    Series("bare_shm_ms", "the same without us, ms", "note", 2),
    Series("way_ms", "server to worker and back, ms", "total", 3),
    Series("copies_ms", "two memcpys, ms", "note", 3),
    Series("ratio", "ratio of these two", "note", 2, at_most=1.3, since=1_000_001),
)

CURVES = {
    curve.name: curve
    for curve in (
        Curve(
            "models",
            "bound models",
            (1, 10, 100, 300, 1000),
            (1, 10, 50),
            (
                Series("ready_s", "start, s", "total", 2),
                Series("stop_s", "stop, s", "total", 2),
                Series("memory_mb", "memory, MB", "total"),
                Series("c1_us", "a request, µs", "each"),
                Series("c1_cpu_us", "processor per request, µs", "each"),
            ),
            _models,
            rounds=1,
        ),
        Curve(
            "instances",
            "instances of a model",
            (1, 2, 4, 8, 16, 32, 64),
            (1, 8),
            (
                Series("c1_us", "c1: a request, µs", "each"),
                Series("c1_cpu_us", "c1: processor per request, µs", "each"),
                Series("c1_switches", "c1: context switches per request", "each", 2),
                Series("bare_c1_us", "c1: without us, µs", "note"),
                Series("c64_per_s", "c64: requests/s", "rate"),
                Series("c64_cpu_us", "c64: processor per request, µs", "each"),
                Series("c64_switches", "c64: context switches per request", "each", 2),
                Series("c64_batch", "c64: requests per batch", "note", 1),
                Series("bare_c64_per_s", "c64: without us, requests/s", "note"),
            ),
            _instances,
        ),
        Curve(
            "idle",
            "idle connections",
            (1, 10, 100, 1_000, 10_000),
            (1, 1_000),
            (
                Series("c1_us", "a request on another connection, µs", "each"),
                Series("c1_cpu_us", "processor per request, µs", "each"),
                Series("memory_kb", "memory, kB", "total"),
                Series("each_kb", "memory per connection, kB", "note", 1),
            ),
            _idle_connections,
        ),
        Curve(
            "busy",
            "busy connections",
            (1, 10, 100, 300, 1_000),
            (1, 100),
            (
                Series("per_s", "requests/s", "rate"),
                Series("p99_ms", "latency p99, ms", "total", 2),
                Series("cpu_us", "processor per request, µs", "each"),
                Series("switches", "context switches per request", "each", 2),
                Series("batch", "requests per batch", "note", 1),
                Series("bare_per_s", "without us, requests/s", "note"),
                Series("bare_p99_ms", "without us, p99, ms", "note", 2),
            ),
            _busy_connections,
        ),
        Curve(
            "streams",
            "streams at once",
            (1, 10, 100, 300, 1_000),
            (1, 100),
            (
                Series("async_responses_per_s", "async: responses/s", "rate"),
                Series("async_first_ms", "async: until all have begun, ms", "total", 1),
                Series("batch_responses_per_s", "`@batch`: responses/s", "rate"),
                Series("batch_first_ms", "`@batch`: until all have begun, ms", "total", 1),
            ),
            _streams,
        ),
        Curve(
            "payload",
            "bytes",
            (1, 1_000, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 100_000_000, 1_000_000_000),
            (1, 1_000, 1_000_000, 10_000_000),
            _PAYLOAD_SERIES,
            _payloads,
            rounds=1,
        ),
        Curve(
            "chain",
            "models that call one another",
            (1, 2, 4, 8, 16),
            (1, 4),
            (
                Series("us", "a request, µs", "total"),
                Series("cpu_us", "processor per request, µs", "total"),
                Series("switches", "context switches per request", "total", 1),
            ),
            _chain,
        ),
        Curve(
            "batch",
            "requests in a batch",
            (1, 4, 16, 64, 256, 1_024),
            (1, 64),
            (
                Series("batch_us", "`@batch`: µs per request", "each", 2),
                Series("batch_instructions", "`@batch`: Python instructions per request", "each", 1),
                Series("list_us", "list: µs per request", "each", 2),
                Series("list_instructions", "list: Python instructions per request", "each", 1),
            ),
            _batch,
            rounds=1,
        ),
        Curve(
            "processes",
            "instances in processes",
            (1, 2, 4, 8),
            (1, 2),
            (
                Series("per_s", "requests/s", "rate"),
                Series(
                    "efficiency", "per core, % of one process", "note", at_least=90, until=len(os.sched_getaffinity(0))
                ),
            ),
            _processes,
        ),
    )
}
"""All curves, by name."""
