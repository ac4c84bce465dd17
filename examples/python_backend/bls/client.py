"""Sends requests to the models that call another one: ``python examples/python_backend/bls/client.py``."""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http

FORMULAS = {"pipeline": "({a} + {b}) + ({a} - {b})", "pipeline_async": "({a} + {b}) * ({b} - {a})"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to models that call another one.")
    parser.add_argument("--url", default="127.0.0.1:8000", help="host and port of the server's HTTP endpoint")
    arguments = parser.parse_args()
    a, b = 1.0, 10.0
    inputs = []
    for name, value in (("INPUT0", a), ("INPUT1", b)):
        tensor = tritonclient.http.InferInput(name, [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], np.float32))
        inputs.append(tensor)
    with tritonclient.http.InferenceServerClient(arguments.url) as client:
        for model, formula in FORMULAS.items():
            output = client.infer(model, inputs).as_numpy("OUTPUT")
            print(f"{model}: {formula.format(a=a, b=b)} = {output.item()}")


if __name__ == "__main__":
    main()
