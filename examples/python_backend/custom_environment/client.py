"""Sends a request to both models: ``python examples/python_backend/custom_environment/client.py``."""

from __future__ import annotations

import argparse
import platform

import numpy as np
import tritonclient.http


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to models that have an environment of their own.")
    parser.add_argument("--url", default="127.0.0.1:8000", help="host and port of the server's HTTP endpoint")
    parser.add_argument("--digits", type=int, default=30, help="how many digits of pi to compute")
    arguments = parser.parse_args()
    digits = tritonclient.http.InferInput("DIGITS", [1], "INT32")
    digits.set_data_from_numpy(np.array([arguments.digits], np.int32))
    print(f"client: Python {platform.python_version()}, NumPy {np.__version__}")
    with tritonclient.http.InferenceServerClient(arguments.url) as client:
        for model in ("from_folder", "from_archive"):
            result = client.infer(model, [digits])
            versions = ", ".join(each.decode() for each in result.as_numpy("VERSIONS"))
            print(f"{model}: {versions}: pi = {result.as_numpy('PI').item().decode()}")


if __name__ == "__main__":
    main()
