"""Serve a workload with BentoML: adaptive batches, tensors as base64 in JSON, because its batches take no raw bytes."""

from __future__ import annotations

import sys

from serve import serve_command, workload_parser

VARIABLE = "PYTRITON_BENCHMARK_WORKLOAD"
INSTANCES_VARIABLE = "PYTRITON_BENCHMARK_INSTANCES"


def main() -> None:
    """Serve until standard input closes."""
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, "-m", "bentoml", "serve", "bentoml_services:Service", f"--port={options.http_port}"]
    variables = {VARIABLE: options.workload, INSTANCES_VARIABLE: str(options.instances)}
    serve_command(options.http_port, ["/readyz"], [*command, "--backlog=4096"], variables)


if __name__ == "__main__":
    main()
