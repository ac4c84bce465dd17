"""Sends requests to the model of ``server.py`` from many threads: ``python examples/process_instances/client.py``."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import time

import numpy as np
import tritonclient.grpc

MODEL_NAME = "Primes"


def count_primes(client: tritonclient.grpc.InferenceServerClient, limit: int) -> tuple[int, int]:
    """Returns how many primes there are up to a number, and the process that has counted them."""
    tensor = tritonclient.grpc.InferInput("limit", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.array([[limit]], np.int64))
    result = client.infer(MODEL_NAME, [tensor])
    return result.as_numpy("count").item(), result.as_numpy("process").item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to the model of server.py from many threads.")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="host and port of the server's gRPC endpoint")
    parser.add_argument("--requests", type=int, default=200, help="how many requests to send")
    parser.add_argument("--limit", type=int, default=20_000, help="up to where to count")
    arguments = parser.parse_args()

    with tritonclient.grpc.InferenceServerClient(arguments.grpc_url) as client:
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            responses = list(pool.map(lambda _: count_primes(client, arguments.limit), range(arguments.requests)))
        seconds = time.perf_counter() - start
    print(f"There are {responses[0][0]} primes up to {arguments.limit}.")
    for process, count in collections.Counter(process for _, process in responses).most_common():
        print(f"Process {process} has served {count} requests.")
    print(f"{len(responses) / seconds:.1f} requests/s")


if __name__ == "__main__":
    main()
