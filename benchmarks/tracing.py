"""Measure what tracing costs: requests per second without it and at several rates, side by side.

Writes a Markdown table to stdout. The receiver of the spans drops them. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from load import measure_http
from report import markdown_table
from service import free_ports
from workloads import WORKLOADS

_CONCURRENCIES = (1, 32)
_RATES: tuple[int | None, ...] = (None, 0, 1000, 1)  # None is without tracing


class _Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def _serve(rate: int | None, receiver: str) -> None:
    """Serve the smallest workload on free ports until stdin ends."""
    from pytriton.decorators import batch
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    workload = WORKLOADS["tiny"]
    trace_config = None
    if rate is not None:
        trace_config = ["mode=opentelemetry", "level=TIMESTAMPS", f"rate={rate}", f"opentelemetry,url={receiver}"]
    function = workload.function()

    @batch
    def infer(x: Any) -> list[Any]:
        return [function(x)]

    http, grpc, metrics = free_ports(3)
    config = TritonConfig(trace_config=trace_config, http_port=http, grpc_port=grpc, metrics_port=metrics)
    with Triton(config=config) as triton:
        inputs, outputs = ([Tensor(workload.shape, workload.dtype, name)] for name in "xy")
        triton.bind(workload.name, infer, inputs, outputs, config=ModelConfig(max_batch_size=64))
        triton.run()
        print(triton.config.http_port, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def _running(rate: int | None, receiver: str, python: str) -> Iterator[str]:
    command = [python, __file__, "--serve", str(rate), "--receiver", receiver]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int(process.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}/v2/models/tiny/infer"
        finally:
            process.stdin.close()


def _measure(options: argparse.Namespace, receiver: str) -> None:
    body, header_size = WORKLOADS["tiny"].kserve()
    request = body, "application/octet-stream", header_size
    ratios: dict[tuple[int | None, int], list[float]] = {}
    with contextlib.ExitStack() as stack:
        urls = {rate: stack.enter_context(_running(rate, receiver, sys.executable)) for rate in _RATES}
        for url in urls.values():
            measure_http(url, request, 32, 2)
        for number in range(options.rounds):
            for concurrency in _CONCURRENCIES:
                order = [*_RATES[number % len(_RATES) :], *_RATES[: number % len(_RATES)]]
                found = {rate: measure_http(urls[rate], request, concurrency, options.seconds) for rate in order}
                for rate, load in found.items():
                    ratios.setdefault((rate, concurrency), []).append(load.throughput / found[None].throughput)
    rows = [
        [f"rate={rate}", *(f"{statistics.median(ratios[rate, each]):.3f}" for each in _CONCURRENCIES)]
        for rate in _RATES
        if rate is not None
    ]
    print(markdown_table(["Throughput against no tracing", *(f"c{each}" for each in _CONCURRENCIES)], rows))


def main() -> None:
    """Measure, or serve for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="rounds; the median ratio of them counts")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--receiver", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        _serve(None if options.serve == "None" else int(options.serve), options.receiver)
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _measure(options, f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        server.shutdown()


if __name__ == "__main__":
    main()
