"""Compares instances in threads and in processes on this machine: ``python examples/ocr/compare.py``."""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server import Reader  # type: ignore[attr-defined]

from pytriton.client import ModelClient
from pytriton.process import ProcessInstance
from pytriton.triton import Triton, TritonConfig

RECEIPT = Path(__file__).with_name("receipt.png").read_bytes()


def pictures_per_second(url: str, model: str, count: int) -> float:
    """Sends a number of pictures to a model, four at a time."""
    with ModelClient(url, model, inference_timeout_s=300) as client, ThreadPoolExecutor(4) as pool:
        start = time.perf_counter()
        list(pool.map(lambda _: client.infer_sample(image=RECEIPT), range(count)))
        return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare instances in threads and in processes.")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure each model, in turn")
    parser.add_argument("--requests", type=int, default=12, help="pictures to read each time")
    arguments = parser.parse_args()

    process = ProcessInstance(Reader)
    models = {
        "1 thread": [Reader()],
        "2 threads": [Reader(), Reader()],
        "1 process": [process],
        "2 processes": [process, process],
    }
    config = TritonConfig(http_address="127.0.0.1", http_port=0, allow_grpc=False, allow_metrics=False)
    with Triton(config=config) as triton:
        for name, instances in models.items():
            triton.bind(name.replace(" ", "_"), instances)
        triton.run()
        url = f"localhost:{triton.config.http_port}"
        rounds = [
            {name: pictures_per_second(url, name.replace(" ", "_"), arguments.requests) for name in models}
            for _ in range(1 + arguments.rounds)  # the first round is a warm-up
        ][1:]
    for name in models:
        speed = statistics.median(each[name] for each in rounds)
        ratio = statistics.median(each[name] / each["1 thread"] for each in rounds)
        print(f"{name:<11} {speed:6.2f} pictures/s  {ratio:.2f} x")


if __name__ == "__main__":
    main()
