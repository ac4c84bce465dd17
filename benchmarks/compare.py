"""Measure this project side by side with other ways to serve a Python function.

Writes a Markdown report, every number as JSON and a plot into a folder; progress goes to stderr. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from contenders import CONTENDERS, Places, Server, prepare
from environments import (
    REPOSITORY,
    PerfAnalyzer,
    SetupError,
    interpreter,
    prepare_peer,
    prepare_perf_analyzer,
    versions,
)
from load import LoadError, measure_grpc, measure_http
from plot import draw
from report import machine, write_report
from service import Service, ServiceError, running
from workloads import WORKLOADS

_TEN = 10

Found = dict[str, float]
"""Numbers of one round for one contender, by names like ``http/tiny/64/1/throughput`` (see README.md)."""


def main() -> int:
    """Set up, measure in rounds, write the results."""
    options = _parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    if shutil.which("wrk") is None:
        print("compare.py: there is no wrk, which makes the load over HTTP (Debian: apt install wrk)", file=sys.stderr)
        return 1
    places = Places(options.cache, options.python, options.ours_python)
    try:
        options.cache.mkdir(parents=True, exist_ok=True)
        servers, missing = prepare(options.contenders, places)
        perf_analyzer = None
        if options.grpc_concurrency:
            perf_analyzer = prepare_perf_analyzer(options.cache, prepare_peer(options.cache, options.python))
        rounds: dict[str, list[Found]] = {server.name: [] for server in servers}
        for index in range(options.rounds):
            for found in rounds.values():
                found.append({})
            _measure_round(servers, perf_analyzer, rounds, index, options)
            results = {
                "machine": machine(),
                "contenders": {
                    server.name: {
                        "title": server.contender.title,
                        "versions": versions(server.contender.python),
                        "bound": server.only_measures,
                        "rounds": rounds[server.name],
                    }
                    for server in servers
                },
                "missing": missing,
            }
            options.results.mkdir(parents=True, exist_ok=True)
            (options.results / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    except (SetupError, ServiceError, LoadError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(write_report(results, options.results))
    draw(results, options.results, options.cache, options.python)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--contenders", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS], metavar="NAME")
    parser.add_argument(
        "--workloads", nargs="*", choices=[*WORKLOADS, "stream", "lifecycle", "bls"], metavar="NAME",
        default=[*WORKLOADS, "stream", "lifecycle", "bls"],
    )  # fmt: skip
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8, 64, 256], help="over HTTP")
    parser.add_argument("--grpc-concurrency", type=int, nargs="*", default=[1, 64], help="over gRPC")
    parser.add_argument("--instances", type=int, nargs="*", default=[2, 8], help="besides 1, of the tiny model")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turn")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build" / "benchmarks" / "results")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "build" / "benchmarks", help="kept between runs")
    parser.add_argument(
        "--python", type=interpreter, default=Path(sys.executable), help="what to make the environments with"
    )
    parser.add_argument(
        "--ours-python", type=interpreter, help="interpreter of an environment that has this project already"
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    options.cache, options.results = options.cache.resolve(), options.results.resolve()
    return options


def _measure_round(
    servers: list[Server],
    perf_analyzer: PerfAnalyzer | None,
    rounds: dict[str, list[Found]],
    index: int,
    options: argparse.Namespace,
) -> None:
    for workload in [*WORKLOADS, "stream"]:
        if workload not in options.workloads:
            continue
        for instances in [1, *(options.instances if workload == "tiny" else [])]:
            for server in servers:
                if workload in server.workloads:
                    found = _measure(server, perf_analyzer, workload, instances, options)
                    _take(found, server, rounds, index)
    for server in servers:
        if server.is_triton and "lifecycle" in options.workloads:
            with _serving(server, "tiny", 1, options, f"--models={_TEN}") as service:
                service.stop()
            _take({"ten/ready_s": service.ready_s, "ten/stop_s": service.stop_s}, server, rounds, index)
        if server.script == "serve_repository.py" and not server.only_measures and "bls" in options.workloads:
            with _serving(server, "tiny", 1, options, "--bls") as service:
                request = server.request("tiny")
                url = f"http://127.0.0.1:{service.http_port}/v2/models/tiny_bls/infer"
                measure_http(url, request, 1, 1)
                load = measure_http(url, request, 1, options.seconds)
            _take({f"bls/{key}": value for key, value in asdict(load).items()}, server, rounds, index)


def _take(found: Found, server: Server, rounds: dict[str, list[Found]], index: int) -> None:
    rounds[server.name][index].update(found)
    for key, value in found.items():
        if key.endswith(("throughput", "_s", "mb")):
            print(f"round {index + 1}, {server.name}: {key} {value:.6g}", file=sys.stderr, flush=True)


def _measure(
    server: Server,
    perf_analyzer: PerfAnalyzer | None,
    workload: str,
    instances: int,
    options: argparse.Namespace,
) -> Found:
    found: Found = {}
    with _serving(server, workload, instances, options) as service:
        request = server.request(workload)
        url = f"http://127.0.0.1:{service.http_port}{server.path(workload)}"
        first_ms = _ask_once(service, server, workload)
        if workload == "tiny" and instances == 1:
            found |= {"ready_s": service.ready_s, "first_ms": first_ms, "memory_mb": service.memory_mb()}
        # Every measurement is preceded by a second that does not count.
        for concurrency in options.concurrency:
            key = f"http/{workload}/{concurrency}/{instances}"
            measure_http(url, request, concurrency, 1)
            before_s = service.cpu_s()
            load = measure_http(url, request, concurrency, options.seconds)
            used_s = service.cpu_s() - before_s
            found |= {f"{key}/{name}": value for name, value in asdict(load).items()}
            found[f"{key}/cpu_us"] = used_s / (load.throughput * options.seconds) * 1e6
        if perf_analyzer is not None and server.is_triton and workload in ("tiny", "image") and instances == 1:
            for concurrency in options.grpc_concurrency:
                load = measure_grpc(perf_analyzer, service.grpc_port, workload, concurrency, options.seconds / 2)
                key = f"grpc/{workload}/{concurrency}/{instances}"
                found |= {f"{key}/{name}": value for name, value in asdict(load).items()}
        if workload == "tiny" and instances == 1:
            found["loaded_mb"] = service.memory_mb()
    if workload == "tiny" and instances == 1:
        found["stop_s"] = service.stop_s
    return found


def _serving(server: Server, workload: str, instances: int, options: argparse.Namespace, *more: str):
    contender = server.contender
    log = options.cache / "logs" / f"{server.name}-{workload}-{instances}.log"
    arguments = [*server.arguments, f"--workload={workload}", f"--instances={instances}", *more]
    return running(server.script, arguments, contender.python, contender.variables, log)


def _ask_once(service: Service, server: Server, workload: str) -> float:
    """Ask for the first time, and check the answer; returns how many milliseconds it took."""
    body, kind, header_size = server.request(workload)
    headers = {"Content-Type": kind}
    if header_size:
        headers["Inference-Header-Content-Length"] = str(header_size)
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=60)
    started = time.perf_counter()
    connection.request("POST", server.path(workload), body, headers)
    response = connection.getresponse()
    answer = response.read()
    took_ms = (time.perf_counter() - started) * 1e3
    connection.close()
    if response.status != http.client.OK:
        raise ServiceError(f"{server.name} answered {workload} with {response.status}: {answer[:500]!r}")
    if workload in ("tiny", "image") and server.identity(workload) not in answer:
        raise ServiceError(f"{server.name} answered {workload} with something else than the input: {answer[-100:]!r}")
    return took_ms


if __name__ == "__main__":
    sys.exit(main())
