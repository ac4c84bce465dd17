"""Serve identity models; report as JSON lines on stdout how long getting ready and stopping took.

The script uses only the interface that this project shares with nvidia-pytriton 0.7.0, so it runs unchanged in the
environment of either. It serves until its standard input closes, which also ends it when whoever started it dies.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

import pytriton.triton
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def unrestricted() -> dict[str, Any]:
    """Open the statistics endpoint, which perf_analyzer reads, where it is kept behind an access token."""
    security_config = getattr(pytriton.triton, "TritonSecurityConfig", None)
    return {} if security_config is None else {"security_config": security_config(restricted_endpoints=[])}


@batch
def identity(x: Any) -> list[Any]:
    """Answer with the input itself.

    Args:
        x: float32 array of shape ``(batch, size)``.

    Returns:
        The model's only output: that array.
    """
    return [x]


def report_stream() -> TextIO:
    """Keep stdout for the report: whatever a server prints goes to stderr, from its own process too."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


def report(stream: TextIO, event: str, started: float) -> None:
    """Say what has happened, and how many seconds it took since it started."""
    print(json.dumps({"event": event, "seconds": time.perf_counter() - started}), file=stream, flush=True)


def wait_until_ready(port: int, model: str) -> None:
    """Ask Triton itself, so that ready means the same whatever a library's ``run()`` waits for."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", f"/v2/models/{model}/ready")
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.005)


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    parser.add_argument("--models", type=int, default=1, help="how many, named identity_0, identity_1, ...")
    parser.add_argument("--size", type=int, default=16, help="float32 values per sample")
    parser.add_argument("--max-batch-size", type=int, default=64)
    options = parser.parse_args()

    stream = report_stream()
    models = [f"identity_{index}" for index in range(options.models)]
    started = time.perf_counter()
    triton = Triton(
        config=TritonConfig(
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            metrics_port=options.metrics_port,
        ),
        **unrestricted(),
    )
    for model in models:
        triton.bind(
            model_name=model,
            infer_func=identity,
            inputs=[Tensor(name="x", shape=(options.size,), dtype=np.float32)],
            outputs=[Tensor(name="y", shape=(options.size,), dtype=np.float32)],
            config=ModelConfig(max_batch_size=options.max_batch_size),
        )
    triton.run()
    for model in models:
        wait_until_ready(options.http_port, model)
    report(stream, "ready", started)

    sys.stdin.read()

    started = time.perf_counter()
    triton.stop()
    report(stream, "stopped", started)


if __name__ == "__main__":
    main()
