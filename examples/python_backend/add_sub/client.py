"""Sends requests to the model: ``python examples/python_backend/add_sub/client.py``."""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http


def main() -> None:
    parser = argparse.ArgumentParser(description="Add and subtract two rows.")
    parser.add_argument("--url", default="127.0.0.1:8000", help="host and port of the server's HTTP endpoint")
    arguments = parser.parse_args()
    a = np.array([[1, 2, 3, 4]], np.float32)
    b = np.array([[10, 20, 30, 40]], np.float32)
    inputs = []
    for name, array in (("INPUT0", a), ("INPUT1", b)):
        tensor = tritonclient.http.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    with tritonclient.http.InferenceServerClient(arguments.url) as client:
        result = client.infer("add_sub", inputs)
    sums, differences = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    for left, right, added, subtracted in zip(a[0], b[0], sums[0], differences[0], strict=True):
        print(f"{left} + {right} = {added}, {left} - {right} = {subtracted}")


if __name__ == "__main__":
    main()
