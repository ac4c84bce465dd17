"""Sends pictures to the model of ``server.py``, from memory and from a GPU.

python examples/nearest_neighbors/client.py
"""

import argparse
import time

import numpy as np
import torch
import tritonclient.http
from sklearn.datasets import load_digits

from pytriton.client import ModelClient


class GpuSender:
    """Sends pictures that are in the memory of a GPU, where the server reads them.

    Args:
        url: The server's address.
        images: The pictures.
    """

    def __init__(self, url: str, images: np.ndarray) -> None:
        import tritonclient.utils.cuda_shared_memory as shared

        self._shared = shared
        self._client = tritonclient.http.InferenceServerClient(url)
        self._region = shared.create_shared_memory_region("images", images.nbytes, 0)
        shared.set_shared_memory_region_from_dlpack(self._region, [torch.from_numpy(images).cuda()])
        self._client.register_cuda_shared_memory("images", shared.get_raw_handle(self._region), 0, images.nbytes)
        self._image = tritonclient.http.InferInput("image", images.shape, "FP32")
        self._image.set_shared_memory("images", images.nbytes)

    def send(self) -> np.ndarray:
        """Returns the label of each picture."""
        labels: np.ndarray = self._client.infer("Digits", [self._image]).as_numpy("label")
        return labels.ravel()

    def close(self) -> None:
        """Releases the memory."""
        self._client.unregister_cuda_shared_memory("images")
        self._shared.destroy_shared_memory_region(self._region)
        self._client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Send pictures of digits to the model of server.py.")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    arguments = parser.parse_args()

    digits = load_digits()
    images, labels = digits.data[1::2].astype(np.float32), digits.target[1::2]  # not those that the server knows
    with ModelClient(arguments.url, "Digits") as client:
        start = time.perf_counter()
        found = client.infer_batch(images)["label"].ravel()
        print(f"from memory: {np.mean(found == labels):.1%} of {len(images)} pictures are right, {took(start)}")
    if torch.cuda.is_available():
        sender = GpuSender(arguments.url, images)
        start = time.perf_counter()
        found = sender.send()
        print(f"from the GPU: {np.mean(found == labels):.1%} of {len(images)} pictures are right, {took(start)}")
        sender.close()


def took(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.1f} ms"


if __name__ == "__main__":
    main()
