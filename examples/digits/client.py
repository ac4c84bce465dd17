"""Sends pictures of digits to the model of ``server.py``: ``python examples/digits/client.py``."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sklearn.datasets import load_digits

from pytriton.client import ModelClient


def show(image: np.ndarray) -> str:
    """Draws a picture with a character for each pixel, from 0 to 16 dark."""
    return "\n".join("".join(" ░▒▓█"[int(pixel) // 4] * 2 for pixel in row) for row in image)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send pictures of digits to the model of server.py.")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    arguments = parser.parse_args()

    images, labels = (array[1::2] for array in (load_digits().images, load_digits().target))  # not the training data
    with ModelClient(arguments.url, "Digits") as client, ThreadPoolExecutor(16) as pool:
        print(show(images[0]))
        print(f"is a {client.infer_sample(images[0].ravel())['label'].item()}.")
        start = time.perf_counter()
        found = np.array([*pool.map(lambda image: client.infer_sample(image.ravel())["label"].item(), images)])
        seconds = time.perf_counter() - start
    print(f"{np.mean(found == labels):.1%} of {len(images)} pictures are right, {len(images) / seconds:.0f} pictures/s")


if __name__ == "__main__":
    main()
