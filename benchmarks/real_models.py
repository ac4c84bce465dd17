"""Measure real models side by side: served by PyTriton and by other servers, on as many workers of one thread each.

Writes a Markdown report, every number as JSON and a plot into a folder, and the numbers into a page of the
documentation if one is named; progress goes to stderr. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from command import parser, positive, run
from contenders import Server
from environments import (
    REPOSITORY,
    Contender,
    SetupError,
    environment,
    git_description,
    ours_in,
    prepare_ours,
    run_command,
    versions,
)
from load import LoadError, measure_http, wrk_version
from measurement import Found, Plan, in_turn, measure_wrk
from real_functions import MODELS, NETWORK_VARIABLE, ONE_THREAD, REQUIREMENTS, SAMPLES, Model
from real_report import draw, write_page, write_report
from report import machine
from service import Service, ServiceError, running

_OURS: dict[str, list[str]] = {"pytriton": [], "waiting": ["--queue-delay-us=300"], "unbatched": ["--no-batches"]}
"""Ways to bind a model with PyTriton, with the arguments of its script; the last two are of models with batches."""
_TITLES = {
    "pytriton": "PyTriton",
    "waiting": "PyTriton, waiting 0.3 ms for a batch",
    "unbatched": "PyTriton, no batches",
    "fastapi": "FastAPI, uvicorn",
    "litserve": "LitServe",
    "bentoml": "BentoML",
    "mosec": "mosec",
    "rayserve": "Ray Serve",
}
_PACKAGES = {
    "fastapi": ["fastapi", "uvicorn[standard]"],
    "litserve": ["litserve>=0.2"],
    "bentoml": ["bentoml>=1.4"],
    "mosec": ["mosec>=0.9"],
    "rayserve": ["ray[serve]>=2.40"],
}
_NOTES = {
    "pytriton": "KServe, binary tensors; each instance in a process of its own, dynamic batching",
    "waiting": "the same, but a batch waits 0.3 ms for more requests",
    "unbatched": "the same without a batcher",
    "fastapi": "raw bytes; a process for each worker, no batches: the model runs in the event loop; uvloop, httptools",
    "litserve": "raw bytes; batches for which it waits 1 ms; `fast_queue` is on",
    "bentoml": "JSON with base64, because its batches take no raw bytes; adaptive batches",
    "mosec": "raw bytes; batches for which it waits 1 ms",
    "rayserve": "raw bytes; a replica for each worker, batches for which it waits 1 ms",
}
_RESTLESS = ("litserve", "rayserve")  # they take processor time while they have no requests
_CHECKED_AT_ONCE = 8
_WARM_UP_S = 1


@dataclass(frozen=True)
class ModelServer(Server):
    """A contender as it serves one of the models.

    Attributes:
        samples: requests to it as bytes, and the outputs of the model itself.
    """

    samples: list[tuple[bytes, bytes]] = field(default_factory=list)

    def path(self, workload: str) -> str:
        """Return the path to which requests are sent over HTTP."""
        if self.name in _OURS:
            return f"/v2/models/{workload}/infer"
        return "/inference" if self.name == "mosec" else "/infer"

    def request(self, workload: str) -> tuple[bytes, str, int]:
        """Encode the first of the requests."""
        return self.encoded(MODELS[workload], self.samples[0][0])

    def encoded(self, model: Model, body: bytes) -> tuple[bytes, str, int]:
        """Encode a request: its body, the body's type, and the size of the KServe header in it (0: none)."""
        if self.name in _OURS:
            return _kserve_request(model, body)
        if self.name == "bentoml":
            return json.dumps({"x": [base64.b64encode(body).decode()]}).encode(), "application/json", 0
        return body, "application/octet-stream", 0

    def decoded(self, model: Model, reply: bytes, header_size: int) -> bytes:
        """Read the output from a response."""
        if self.name in _OURS:
            output = reply[header_size:]
            return output[4:] if model.output_shape is None else output
        if self.name == "bentoml":
            [output] = json.loads(reply)
            return base64.b64decode(output)
        return reply


def _kserve_request(model: Model, body: bytes) -> tuple[bytes, str, int]:
    shape: tuple[int, ...]
    if model.shape is None:
        datatype, data, shape = "BYTES", struct.pack("<I", len(body)) + body, (1,)
    else:
        datatype, data, shape = {"float32": "FP32", "int64": "INT64"}[model.dtype.__name__], body, model.shape
    tensor = {"name": "x", "shape": [1, *shape], "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    return header + data, "application/octet-stream", len(header)


def main() -> int:
    """Set up, measure in rounds, write the results."""
    options = _parse_arguments()
    return run("real_models.py", lambda: _compare(options))


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--contenders", nargs="+", choices=[*_TITLES], default=[*_TITLES], metavar="NAME")
    made.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS], metavar="NAME")
    made.add_argument("--concurrency", type=positive, nargs="+", default=[1, 8, 64])
    cores = len(os.sched_getaffinity(0))
    made.add_argument("--workers", type=positive, default=cores, help="of each server, each on one thread")
    made.add_argument("--rounds", type=positive, default=5, help="how often each is measured, in turn")
    made.add_argument("--seconds", type=positive, default=2, help="of one measurement; slow models take longer")
    made.add_argument("--torch", default="torch>=2.4,<3", help="what pip installs as PyTorch")
    made.add_argument("--results", type=Path, default=REPOSITORY / "build" / "benchmarks" / "real_models")
    made.add_argument("--page", type=Path, help="a Markdown file that takes the numbers between its markers")
    options = made.parse_args()
    options.results = options.results.resolve()
    return options


def _compare(options: argparse.Namespace) -> None:
    tools = {"Python": sys.version.split()[0], "wrk": wrk_version()}
    servers, missing = _prepare(options)
    results: dict[str, Any] = {
        "machine": machine(),
        "commit": git_description(),
        "tools": tools,
        "rounds": options.rounds,
        "workers": options.workers,
        "missing": missing,
        "contenders": {
            server.name: {
                "title": server.contender.title,
                "note": server.note,
                "versions": versions(server.contender.python),
                "bound": False,
                "rounds": [],
                "failed": [],
            }
            for server in servers
        },
    }
    found = {server.name: Found(server.name, [{} for _ in range(options.rounds)]) for server in servers}
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        _measure_model(MODELS[name], servers, found, options)
        for server in servers:
            kept = found[server.name]
            results["contenders"][server.name] |= {"rounds": kept.rounds, "failed": kept.failed}
        (options.results / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        report = write_report(results, options.results)
    print(report)
    draw(options.results, options.cache, options.python)
    if options.page:
        write_page(options.page, report, options.results)


def _prepare(options: argparse.Namespace) -> tuple[list[ModelServer], dict[str, str]]:
    """Install the contenders; those that do not install are left out, with the reason."""
    network = _network_file(options.cache, options.python)
    packages = [*REQUIREMENTS, options.torch]
    servers: list[ModelServer] = []
    missing: dict[str, str] = {}
    for name in options.contenders:
        try:
            contender = _contender(name, packages, options)
        except SetupError as error:
            missing[name] = str(error)
            continue
        contender.variables.update({NETWORK_VARIABLE: str(network), **ONE_THREAD})
        script = f"real_{'pytriton' if name in _OURS else name}.py"
        arguments = [f"--workers={options.workers}", *_OURS.get(name, [])]
        servers.append(ModelServer(contender, script, arguments, is_restless=name in _RESTLESS, note=_NOTES[name]))
    if not servers:
        raise SetupError("none of the contenders could be installed: " + ", ".join(options.contenders))
    return servers, missing


def _contender(name: str, packages: list[str], options: argparse.Namespace) -> Contender:
    if name in _OURS:
        if options.ours_python:
            made = ours_in(options.ours_python)
        else:
            made = prepare_ours(options.cache, options.python, "real_ours", packages)
        python, variables = made.python, made.variables
    else:
        wanted = [*_PACKAGES[name], *packages]
        python, variables = environment(options.cache / f"real_{name}", options.python, wanted)
    return Contender(name, _TITLES[name], python, dict(variables))


def _network_file(cache: Path, base_python: Path) -> Path:
    file = cache / "resnet18.onnx"
    if not file.exists():
        python, _ = environment(cache / "onnx", base_python, ["onnx", "numpy"])
        run_command([str(python), str(Path(__file__).with_name("make_resnet.py")), str(file)])
    return file


def _measure_model(
    model: Model, servers: list[ModelServer], found: dict[str, Found], options: argparse.Namespace
) -> None:
    left_out = [name for name in _OURS if name != "pytriton"] if model.max_batch_size == 1 else []
    able = [server for server in servers if server.name not in left_out]
    samples = _samples(model, servers[0].contender, options.cache)
    seconds = options.seconds * model.seconds
    logs = options.cache / "logs"
    plan = Plan({model.name: options.concurrency}, [], seconds, options.rounds, frozenset(), options.rounds, logs, None)
    pairs = [(replace(server, samples=samples), found[server.name]) for server in able]
    with _all_serving(model, pairs, plan) as services:

        def measure(service: Service, server: Server, number: int, concurrency: int) -> dict[str, float]:
            url = f"http://127.0.0.1:{service.http_port}{server.path(model.name)}"
            request = server.request(model.name)
            if number == 0:
                with contextlib.suppress(LoadError):  # a failure repeats below
                    measure_http(url, request, concurrency, _WARM_UP_S)
                service.settle()
            try:
                return measure_wrk(service, url, request, concurrency, seconds, warm_up=False)
            finally:
                service.settle()  # many still compute what wrk no longer waits for, and would disturb the next

        for concurrency in options.concurrency:
            what, prefix = f"{model.name}, c{concurrency}", f"{model.name}/{concurrency}"
            in_turn(services, plan, what, prefix, partial(measure, concurrency=concurrency))


def _samples(model: Model, contender: Contender, cache: Path) -> list[tuple[bytes, bytes]]:
    """Make requests, and compute their outputs in a separate process, without a server."""
    folder = cache / "real_samples" / model.name
    script = str(Path(__file__).with_name("real_functions.py"))
    run_command([str(contender.python), script, model.name, str(folder)], variables=contender.variables)
    return [
        tuple((folder / f"{number}.{kind}").read_bytes() for kind in ("request", "answer"))  # type: ignore[misc]
        for number in range(SAMPLES)
    ]


@contextlib.contextmanager
def _all_serving(
    model: Model, pairs: list[tuple[ModelServer, Found]], plan: Plan
) -> Iterator[list[tuple[Service, tuple[Server, Found]]]]:
    """Start all that can serve it, and check their responses."""
    services: list[tuple[Service, tuple[Server, Found]]] = []
    with contextlib.ExitStack() as stack:
        for server, found in pairs:
            with found.attempt(0, model.name):
                stack.enter_context(found.attempt(plan.rounds - 1, f"{model.name}, stop"))
                log = plan.logs / f"real-{server.name}-{model.name}.log"
                arguments = [*server.arguments, f"--model={model.name}"]
                contender = server.contender
                serving = running(server.script, arguments, contender.python, contender.variables, log)
                service = stack.enter_context(serving)
                _check(service, server, model)
                if server.is_restless:
                    service.settle()
                    service.pause()
                services.append((service, (server, found)))
        yield services


def _check(service: Service, server: ModelServer, model: Model) -> None:
    """Send all requests, several at a time so that they share batches, and compare the outputs with the model's own."""

    def fault(sample: tuple[bytes, bytes]) -> str | None:
        body, kind, header_size = server.encoded(model, sample[0])
        headers = {"Content-Type": kind}
        if header_size:
            headers["Inference-Header-Content-Length"] = str(header_size)
        connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", server.path(model.name), body, headers)
            response = connection.getresponse()
            reply = response.read()
        if response.status != http.client.OK:
            return f"status {response.status}: {reply[:500]!r}"
        output = server.decoded(model, reply, int(response.headers.get("Inference-Header-Content-Length", 0)))
        return None if model.is_right(output, sample[1]) else f"{output[:100]!r} in place of {sample[1][:100]!r}"

    with concurrent.futures.ThreadPoolExecutor(_CHECKED_AT_ONCE) as pool:
        try:
            wrong = next(filter(None, pool.map(fault, itertools.chain(server.samples, server.samples))), None)
        except (OSError, http.client.HTTPException) as error:
            wrong = repr(error)
    if wrong:
        raise ServiceError(f"{server.name} responded to {model.name} with {wrong}; its log: {service.log}")


if __name__ == "__main__":
    sys.exit(main())
