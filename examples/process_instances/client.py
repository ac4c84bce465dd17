"""Sends requests to the model of ``server.py`` from many threads: ``python examples/process_instances/client.py``."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import time

import numpy as np

from pytriton.client import ModelClient

MODEL_NAME = "Primes"


def count_primes(client: ModelClient, limit: int) -> tuple[int, int]:
    """Returns the number of primes up to a limit, and the process that counted them."""
    result = client.infer_sample(np.array([limit]))
    return result["count"].item(), result["process"].item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to the model of server.py from many threads.")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="host and port of the server's gRPC endpoint")
    parser.add_argument("--requests", type=int, default=200, help="how many requests to send")
    parser.add_argument("--limit", type=int, default=20_000, help="the limit up to which to count")
    arguments = parser.parse_args()

    with ModelClient(f"grpc://{arguments.grpc_url}", MODEL_NAME) as client:
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            responses = list(pool.map(lambda _: count_primes(client, arguments.limit), range(arguments.requests)))
        seconds = time.perf_counter() - start
    print(f"There are {responses[0][0]} primes up to {arguments.limit}.")
    for process, count in collections.Counter(process for _, process in responses).most_common():
        print(f"Process {process} served {count} requests.")
    print(f"{len(responses) / seconds:.1f} requests/s")


if __name__ == "__main__":
    main()
