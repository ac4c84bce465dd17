"""Trains the model of ``server.py`` and measures its accuracy: ``python examples/online_learning/client.py``."""

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from pytriton.client import ModelClient


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model of server.py, and measure its accuracy.")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    parser.add_argument("--pictures", type=int, default=100, help="pictures to learn from at a time")
    arguments = parser.parse_args()

    digits = load_digits()
    images, test_images, labels, test_labels = train_test_split(
        (digits.images / 16).astype(np.float32), digits.target, test_size=500, random_state=0
    )
    start, requests = time.perf_counter(), 0
    with ModelClient(arguments.url, "Learn") as learn, ModelClient(arguments.url, "Classify") as classify:
        for first in range(0, len(images), arguments.pictures):
            rows = slice(first, first + arguments.pictures)
            steps = learn.infer_batch(image=images[rows], digit=labels[rows, np.newaxis])["steps"][0].item()
            accuracy = np.mean(classify.infer_batch(test_images)["digit"][:, 0] == test_labels)
            print(f"{steps:5} pictures {accuracy:7.1%} {'█' * round(40 * accuracy)}", flush=True)
            requests += 2
    print(f"{1000 * (time.perf_counter() - start) / requests:.1f} ms per request")


if __name__ == "__main__":
    main()
