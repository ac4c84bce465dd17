"""Measures the servers, in rounds."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from contenders import Server
from environments import Contender, PerfAnalyzer
from load import LoadError, measure_grpc, measure_http
from service import Service, ServiceError, memory_mb, running
from workloads import STREAM, STREAM_LENGTH

_MODELS = 10
_WARM_UP_S = 1
_LIFECYCLE_ROUNDS = 3  # which differ little, and take long
_BARE = "import sys, numpy; print(flush=True); sys.stdin.read()"


@dataclass(frozen=True)
class Plan:
    """How a run measures.

    Attributes:
        concurrency: requests at a time over HTTP, by workload.
        grpc_concurrency: requests at a time over gRPC.
        seconds: length of one measurement.
        rounds: how often each is taken.
        main: which ones are taken more often, such as ``http/tiny/64/1``: protocol, workload, concurrency, instances.
        main_rounds: how often these are.
        logs: folder for the servers' output.
        perf_analyzer: the load generator for gRPC; None: gRPC is not measured.
    """

    concurrency: Mapping[str, list[int]]
    grpc_concurrency: list[int]
    seconds: int
    rounds: int
    main: frozenset[str]
    main_rounds: int
    logs: Path
    perf_analyzer: PerfAnalyzer | None

    def rounds_of(self, prefix: str) -> int:
        """Return how often a measurement is taken."""
        return self.main_rounds if prefix in self.main else self.rounds


@dataclass
class Found:
    """The results of one contender.

    Attributes:
        contender: its name.
        rounds: of each round, numbers by names such as ``http/tiny/64/1/throughput``: protocol, workload, concurrency,
            instances.
        failed: what failed: its round, what it was, and why.
    """

    contender: str
    rounds: list[dict[str, float]]
    failed: list[dict[str, Any]] = field(default_factory=list)

    def take(self, number: int, found: dict[str, float]) -> None:
        """Keep numbers of a round, and show the most important ones."""
        self.rounds[number].update(found)
        for key, value in found.items():
            if key.endswith(("throughput", "_s", "_mb")):
                self._report(number, f"{key} {value:.6g}")

    @contextlib.contextmanager
    def attempt(self, number: int, what: str) -> Iterator[None]:
        """Record a failure in a ``with`` block, and continue."""
        try:
            yield
        except (ServiceError, LoadError) as error:
            self.failed.append({"round": number + 1, "what": what, "why": str(error)})
            self._report(number, f"{what} failed: {error}")

    def has_failed(self, what: str) -> bool:
        """Return whether it has failed in an earlier round."""
        return any(each["what"] == what for each in self.failed)

    def _report(self, number: int, text: str) -> None:
        print(f"round {number + 1}, {self.contender}: {text}", file=sys.stderr, flush=True)


Pair = tuple[Server, Found]
"""A contender and its results."""

Measure = Callable[[Service, Server, int], dict[str, float]]
"""Measures a server, in a round."""


def measure_workload(pairs: list[Pair], workload: str, instances: int, plan: Plan) -> None:
    """Measure throughput, latency and processor time.

    All servers are started, and measured in turn, so that whatever else the machine does in a minute affects them all.

    Args:
        pairs: whose.
        workload: what they serve.
        instances: of the model; of several, only the throughput at one concurrency.
        plan: how.
    """
    name = f"{workload}, {instances} instances" if instances > 1 else workload
    with _all_serving(pairs, workload, plan, name, f"--instances={instances}") as services:
        wanted = plan.concurrency[workload]
        for concurrency in wanted if instances == 1 else wanted and [min(max(wanted), 64)]:
            in_turn(
                services,
                plan,
                f"{name}, HTTP, c{concurrency}",
                f"http/{workload}/{concurrency}/{instances}",
                partial(_measure_http, workload=workload, concurrency=concurrency, seconds=plan.seconds),
            )
        perf_analyzer = plan.perf_analyzer
        if perf_analyzer is None or workload not in ("tiny", "image") or instances > 1:
            return
        triton = [(service, pair) for service, pair in services if pair[0].is_triton]
        for concurrency in plan.grpc_concurrency:
            in_turn(
                triton,
                plan,
                f"{name}, gRPC, c{concurrency}",
                f"grpc/{workload}/{concurrency}/{instances}",
                lambda service, *_, c=concurrency: asdict(
                    measure_grpc(perf_analyzer, service.grpc_port, workload, c, plan.seconds / 2)
                ),
            )


def measure_bls(pairs: list[Pair], plan: Plan) -> None:
    """Measure a model that calls another one inside the server (BLS), one request at a time."""
    with _all_serving(pairs, "tiny", plan, "BLS", "--bls") as services:

        def measure(service: Service, server: Server, number: int) -> dict[str, float]:
            url = f"http://127.0.0.1:{service.http_port}/v2/models/tiny_bls/infer"
            return measure_wrk(service, url, server.request("tiny"), 1, plan.seconds, warm_up=number == 0)

        in_turn(services, plan, "BLS", "bls", measure)


def measure_lifecycle(pairs: list[Pair], plan: Plan) -> None:
    """Measure start, first request, memory and stop of one model; start and stop of ten. One server runs at a time."""
    for number in range(min(plan.rounds, _LIFECYCLE_ROUNDS)):
        for server, found in pairs:
            with found.attempt(number, "start and stop"):
                # Before the server starts, with which it would share pages of Python and NumPy.
                bare_mb = None if server.is_bound else _bare_memory_mb(server.contender)
                with serving(server, "tiny", plan.logs) as service:
                    first_ms = _send_once(service, server, "tiny")
                    found.take(number, {"ready_s": service.ready_s, "first_ms": first_ms, **_memory(service, bare_mb)})
                    _measure_http(service, server, number, "tiny", 64, plan.seconds)
                    found.take(number, {"loaded_mb": service.memory_mb()})
                    service.stop()
                    found.take(number, {"stop_s": service.stop_s})
            if not server.is_triton:
                continue
            models = f"--models={_MODELS}"
            with found.attempt(number, f"{_MODELS} models"), serving(server, "tiny", plan.logs, models) as service:
                found.take(number, {"ten/ready_s": service.ready_s})
                service.stop()
                found.take(number, {"ten/stop_s": service.stop_s})


def in_turn(services: list[tuple[Service, Pair]], plan: Plan, what: str, prefix: str, measure: Measure) -> None:
    """Measure all servers in rounds, each round starting with another one, except those that have failed."""
    for number in range(plan.rounds_of(prefix)):
        first = number % len(services) if services else 0
        for service, (server, found) in services[first:] + services[:first]:
            if not found.has_failed(what):
                with found.attempt(number, what), service.awake() if server.is_restless else contextlib.nullcontext():
                    numbers = measure(service, server, number)
                    found.take(number, {f"{prefix}/{name}": value for name, value in numbers.items()})


@contextlib.contextmanager
def _all_serving(
    pairs: list[Pair], workload: str, plan: Plan, what: str, *more: str
) -> Iterator[list[tuple[Service, Pair]]]:
    """Start all that can serve it, and check their responses."""
    services: list[tuple[Service, Pair]] = []
    with contextlib.ExitStack() as stack:
        for server, found in pairs:
            with found.attempt(0, what):
                stack.enter_context(found.attempt(plan.rounds - 1, f"{what}, stop"))
                service = stack.enter_context(serving(server, workload, plan.logs, *more))
                _send_once(service, server, workload)
                if server.is_restless:
                    service.pause()
                services.append((service, (server, found)))
        yield services


def serving(server: Server, workload: str, logs: Path, *more: str) -> AbstractContextManager[Service]:
    """Have a contender serve a workload during a ``with`` block.

    Args:
        server: whose.
        workload: what.
        logs: folder for its output.
        more: arguments of its script.
    """
    log = logs / f"{server.name}-{workload}{''.join(more)}.log"
    arguments = [*server.arguments, f"--workload={workload}", *more]
    return running(server.script, arguments, server.contender.python, server.contender.variables, log)


def _measure_http(
    service: Service, server: Server, number: int, workload: str, concurrency: int, seconds: int
) -> dict[str, float]:
    url = f"http://127.0.0.1:{service.http_port}{server.path(workload)}"
    events = STREAM_LENGTH if workload == STREAM else 0
    request = server.request(workload)
    return measure_wrk(service, url, request, concurrency, seconds, events, warm_up=number == 0)


def measure_wrk(
    service: Service,
    url: str,
    request: tuple[bytes, str, int],
    concurrency: int,
    seconds: int,
    events: int = 0,
    *,
    warm_up: bool,
) -> dict[str, float]:
    """Measure throughput, latency and processor time of a server over HTTP, if wanted after a second of warm-up."""
    if warm_up:
        with contextlib.suppress(LoadError):  # a failure repeats below
            measure_http(url, request, concurrency, _WARM_UP_S, events)
    before_s = service.cpu_s()
    load = measure_http(url, request, concurrency, seconds, events)
    used_s = service.cpu_s() - before_s
    return {**asdict(load), "cpu_us": used_s / (load.throughput * seconds) * 1e6}


def _memory(service: Service, bare_mb: float | None) -> dict[str, float]:
    """Measure the memory of an idle server, and how much of it the user's own process would not take without it.

    Args:
        service: the server.
        bare_mb: what a bare process takes; none if there is no Python in the server.
    """
    idle = service.memory_mb()
    if bare_mb is None:
        return {"memory_mb": idle}
    return {"memory_mb": idle, "bare_mb": bare_mb, "beyond_mb": idle - bare_mb}


def _bare_memory_mb(contender: Contender) -> float:
    """Measure a Python process that has imported NumPy, and nothing else."""
    with subprocess.Popen(
        [str(contender.python), "-c", _BARE],
        env=contender.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise ServiceError(f"{contender.python} cannot import NumPy")
        return memory_mb({process.pid})


def _send_once(service: Service, server: Server, workload: str) -> float:
    """Send the first request, and check the response; returns how many milliseconds it took."""
    body, kind, header_size = server.request(workload)
    headers = {"Content-Type": kind}
    if header_size:
        headers["Inference-Header-Content-Length"] = str(header_size)
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=60)
    started = time.perf_counter()
    try:
        connection.request("POST", server.path(workload), body, headers)
        response = connection.getresponse()
        reply = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(f"{server.name} did not respond to {workload}: {error!r}; its log: {service.log}") from error
    finally:
        connection.close()
    took_ms = (time.perf_counter() - started) * 1e3
    if response.status != http.client.OK:
        raise ServiceError(f"{server.name} responded to {workload} with {response.status}: {reply[:500]!r}")
    wrong = server.fault(workload, reply)
    if wrong:
        raise ServiceError(f"{server.name} responded to {workload} with {wrong}: {reply[-100:]!r}")
    return took_ms
