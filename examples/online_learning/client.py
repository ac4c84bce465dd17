"""Teaches the model of ``server.py``, and asks how good it is: ``python examples/online_learning/client.py``."""

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from pytriton.client import ModelClient


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach the model of server.py, and ask how good it is.")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    parser.add_argument("--lesson", type=int, default=100, help="pictures to learn from at a time")
    arguments = parser.parse_args()

    digits = load_digits()
    images, exam, labels, expected = train_test_split(
        (digits.images / 16).astype(np.float32), digits.target, test_size=500, random_state=0
    )
    start, count = time.perf_counter(), 0
    with ModelClient(arguments.url, "Learn") as teacher, ModelClient(arguments.url, "Classify") as examiner:
        for first in range(0, len(images), arguments.lesson):
            lesson = slice(first, first + arguments.lesson)
            steps = teacher.infer_batch(image=images[lesson], digit=labels[lesson, np.newaxis])["steps"][0].item()
            accuracy = np.mean(examiner.infer_batch(exam)["digit"][:, 0] == expected)
            print(f"{steps:5} pictures {accuracy:7.1%} {'█' * round(40 * accuracy)}", flush=True)
            count += 2
    print(f"{1000 * (time.perf_counter() - start) / count:.1f} ms per request")


if __name__ == "__main__":
    main()
