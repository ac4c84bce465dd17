"""Sends requests to the model of ``server.py`` over HTTP and over gRPC: ``python examples/add_sub/client.py``."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray

MODEL_NAME = "AddSub"


def infer(protocol: ModuleType, url: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Adds and subtracts two batches.

    Args:
        protocol: ``tritonclient.http`` or ``tritonclient.grpc``, which have the same interface.
        url: Host and port, without a scheme.
        a: Of shape (batch, any size).
        b: Of the same shape.
    """
    inputs = []
    for name, array in (("a", a), ("b", b)):
        tensor = protocol.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    with protocol.InferenceServerClient(url) as client:
        result = client.infer(MODEL_NAME, inputs)
        return {name: result.as_numpy(name) for name in ("add", "sub")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to the model of server.py over HTTP and over gRPC.")
    parser.add_argument("--http-url", default="127.0.0.1:8000", help="host and port of the server's HTTP endpoint")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="host and port of the server's gRPC endpoint")
    arguments = parser.parse_args()

    a = np.array([[1, 2, 3]], np.float32)
    b = np.array([[10, 20, 30]], np.float32)
    for protocol, url in ((tritonclient.http, arguments.http_url), (tritonclient.grpc, arguments.grpc_url)):
        print(f"{protocol.__name__} at {url}")
        for name, array in infer(protocol, url, a, b).items():
            print(f"  {name}: {array.tolist()}")


if __name__ == "__main__":
    main()
