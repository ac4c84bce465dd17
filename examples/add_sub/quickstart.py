"""Starts the server, sends it a request over HTTP and over gRPC, and prints what to try next."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from client import infer
from server import MODEL_NAME, bind

from pytriton.triton import Triton, TritonConfig


def curl(http_port: int | None) -> str:
    """Returns a command that sends the same request."""
    inputs = [
        {"name": "a", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
        {"name": "b", "datatype": "FP32", "shape": [1, 3], "data": [10, 20, 30]},
    ]
    body = json.dumps({"inputs": inputs}, separators=(",", ":"))
    return f"curl -s http://127.0.0.1:{http_port}/v2/models/{MODEL_NAME}/infer -d '{body}'"


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a Python function, and send it requests over HTTP and gRPC.")
    parser.add_argument("--serve", action="store_true", help="keep serving afterwards, until Ctrl-C")
    parser.add_argument("--http-port", type=int, default=0, help="port to serve HTTP on; 0 is any free one")
    arguments = parser.parse_args()

    a = np.array([[1, 2, 3]], np.float32)
    b = np.array([[10, 20, 30]], np.float32)
    config = TritonConfig(
        http_address="127.0.0.1",  # for this machine only; without it, others reach the server, too
        grpc_address="127.0.0.1",
        http_port=arguments.http_port,
        grpc_port=0,  # any free port, whatever else runs on your machine
        metrics_port=0,
    )
    with Triton(config=config) as triton:
        bind(triton)
        triton.run()
        config = triton.config  # with the ports that were chosen
        print(f"Model {MODEL_NAME} is served on HTTP port {config.http_port} and gRPC port {config.grpc_port}.")
        for protocol, port in ((tritonclient.http, config.http_port), (tritonclient.grpc, config.grpc_port)):
            response = infer(protocol, f"127.0.0.1:{port}", a, b)
            print(f"{protocol.__name__}: add = {response['add'].tolist()}, sub = {response['sub'].tolist()}")
        if arguments.serve:
            print("\nTry it from another terminal; Ctrl-C stops the server:\n")
            print(curl(config.http_port), flush=True)
            triton.serve()
        else:
            script = Path(__file__)
            folder = Path.cwd()
            shown = script.relative_to(folder) if script.is_relative_to(folder) else script
            print("\nKeep it running:\n")
            print(f"python {shown} --serve --http-port {config.http_port}")
            print("\nThen, from another terminal:\n")
            print(curl(config.http_port))


if __name__ == "__main__":
    main()
