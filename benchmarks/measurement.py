"""What is measured of one server in one round."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contenders import Server
from environments import Contender, PerfAnalyzer
from load import LoadError, measure_grpc, measure_http
from service import Service, ServiceError, memory_mb, running
from workloads import STREAM, STREAM_LENGTH

_MODELS = 10
_WARM_UP_S = 1
_BARE = "import sys, numpy; print(flush=True); sys.stdin.read()"


@dataclass(frozen=True)
class Plan:
    """How a run measures.

    Attributes:
        concurrency: requests at a time over HTTP.
        grpc_concurrency: requests at a time over gRPC.
        seconds: length of one measurement.
        logs: folder for what the servers print.
        perf_analyzer: makes the load over gRPC; without it there is none.
    """

    concurrency: list[int]
    grpc_concurrency: list[int]
    seconds: int
    logs: Path
    perf_analyzer: PerfAnalyzer | None


@dataclass
class Round:
    """What one round finds of one contender.

    Attributes:
        contender: its name.
        number: the round's, from 1.
        found: numbers by names such as ``http/tiny/64/1/throughput``: protocol, workload, concurrency, instances.
        failed: reasons by what failed.
    """

    contender: str
    number: int
    found: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, found: dict[str, float]) -> None:
        """Keep numbers, and show the most telling ones."""
        self.found.update(found)
        for key, value in found.items():
            if key.endswith(("throughput", "_s", "_mb")):
                self._say(f"{key} {value:.6g}")

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note what fails in a ``with`` block, and go on."""
        try:
            yield
        except (ServiceError, LoadError) as error:
            self.failed[what] = str(error)
            self._say(f"{what} failed: {error}")

    def _say(self, text: str) -> None:
        print(f"round {self.number}, {self.contender}: {text}", file=sys.stderr, flush=True)


def measure_workload(server: Server, workload: str, instances: int, plan: Plan, into: Round) -> None:
    """Measure throughput, latency and processor time; start, stop and memory too for one instance of the tiny model.

    Args:
        server: whose.
        workload: what it serves.
        instances: of the model.
        plan: how.
        into: takes what is found.
    """
    lives = workload == "tiny" and instances == 1
    what = f"{workload}, {instances} instances" if instances > 1 else workload
    with into.attempt(what), _serving(server, workload, instances, plan) as service:
        first_ms = _ask_once(service, server, workload)
        if lives:
            into.take({"ready_s": service.ready_s, "first_ms": first_ms, **_memory(service, server)})
        for concurrency in plan.concurrency:
            with into.attempt(f"{what}, HTTP, c{concurrency}"):
                found = _measure_http(service, server, workload, concurrency, plan)
                into.take(_named(f"http/{workload}/{concurrency}/{instances}", found))
        if plan.perf_analyzer is not None and server.is_triton and workload in ("tiny", "image") and instances == 1:
            for concurrency in plan.grpc_concurrency:
                with into.attempt(f"{what}, gRPC, c{concurrency}"):
                    # Three windows: half as long, the two protocols take about as much time.
                    load = measure_grpc(plan.perf_analyzer, service.grpc_port, workload, concurrency, plan.seconds / 2)
                    into.take(_named(f"grpc/{workload}/{concurrency}/{instances}", asdict(load)))
        if lives:
            into.take({"loaded_mb": service.memory_mb()})
            service.stop()
            into.take({"stop_s": service.stop_s})


def measure_lifecycle(server: Server, plan: Plan, into: Round) -> None:
    """Measure how long ten models take to start and to stop.

    Args:
        server: whose.
        plan: how.
        into: takes what is found.
    """
    with into.attempt(f"{_MODELS} models"), _serving(server, "tiny", 1, plan, f"--models={_MODELS}") as service:
        into.take({"ten/ready_s": service.ready_s})
        service.stop()
        into.take({"ten/stop_s": service.stop_s})


def measure_bls(server: Server, plan: Plan, into: Round) -> None:
    """Measure a model that asks another one inside the server (BLS), one request at a time.

    Args:
        server: whose.
        plan: how.
        into: takes what is found.
    """
    with into.attempt("BLS"), _serving(server, "tiny", 1, plan, "--bls") as service:
        url = f"http://127.0.0.1:{service.http_port}/v2/models/tiny_bls/infer"
        request = server.request("tiny")
        measure_http(url, request, 1, _WARM_UP_S)
        into.take(_named("bls", asdict(measure_http(url, request, 1, plan.seconds))))


def _serving(server: Server, workload: str, instances: int, plan: Plan, *more: str) -> AbstractContextManager[Service]:
    log = plan.logs / f"{server.name}-{workload}-{instances}.log"
    arguments = [*server.arguments, f"--workload={workload}", f"--instances={instances}", *more]
    return running(server.script, arguments, server.contender.python, server.contender.variables, log)


def _measure_http(service: Service, server: Server, workload: str, concurrency: int, plan: Plan) -> dict[str, float]:
    url = f"http://127.0.0.1:{service.http_port}{server.path(workload)}"
    request = server.request(workload)
    events = STREAM_LENGTH if workload == STREAM else 0
    with contextlib.suppress(LoadError):  # what fails does so again below
        measure_http(url, request, concurrency, _WARM_UP_S, events)
    before_s = service.cpu_s()
    load = measure_http(url, request, concurrency, plan.seconds, events)
    used_s = service.cpu_s() - before_s
    return {**asdict(load), "cpu_us": used_s / (load.throughput * plan.seconds) * 1e6}


def _memory(service: Service, server: Server) -> dict[str, float]:
    """What an idle server takes, and how much of that is more than the user's own process would take without it."""
    idle = service.memory_mb()
    if server.is_bound:  # there is no Python in it
        return {"memory_mb": idle}
    bare = _bare_memory_mb(server.contender)
    return {"memory_mb": idle, "bare_mb": bare, "beyond_mb": idle - bare}


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


def _ask_once(service: Service, server: Server, workload: str) -> float:
    """Ask for the first time, and check the answer; returns how many milliseconds it took."""
    body, kind, header_size = server.request(workload)
    headers = {"Content-Type": kind}
    if header_size:
        headers["Inference-Header-Content-Length"] = str(header_size)
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=60)
    started = time.perf_counter()
    try:
        connection.request("POST", server.path(workload), body, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(f"{server.name} did not answer {workload}: {error!r}; its log: {service.log}") from error
    finally:
        connection.close()
    took_ms = (time.perf_counter() - started) * 1e3
    if response.status != http.client.OK:
        raise ServiceError(f"{server.name} answered {workload} with {response.status}: {answer[:500]!r}")
    wrong = server.fault(workload, answer)
    if wrong:
        raise ServiceError(f"{server.name} answered {workload} with {wrong}: {answer[-100:]!r}")
    return took_ms


def _named(prefix: str, found: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in found.items()}
