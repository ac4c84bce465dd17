"""Measures what page-locked memory, and tensors that stay on a GPU, gain.

A function runs a small network of PyTorch on images, on the GPU. Requests of several images come over HTTP, with the
images in their body, or with a reference to the memory of the GPU in which the client has them.

    python benchmarks/gpu.py --rounds 5
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import tritonclient.http
import tritonclient.utils.cuda_shared_memory as shared

from pytriton.decorators import batch, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

COUNTS = (1, 8, 64)  # images of a request
IMAGE = (3, 224, 224)
SECONDS = 1.0


def make_network() -> torch.nn.Module:
    """Returns a network whose computation is cheap compared with the transfer of its input."""
    layers = [torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(588, 1000)]
    return torch.nn.Sequential(*layers).cuda().eval()


@contextlib.contextmanager
def serving(*, page_locked: bool) -> Iterator[Triton]:
    """Serves the network, a function that doubles images, and a chain of both; each in memory and on the GPU."""
    network = make_network()

    @batch
    def classify(image: Any) -> dict[str, Any]:
        with torch.inference_mode():
            return {"scores": network(torch.from_dlpack(image).to("cuda", non_blocking=True))}

    @batch
    def double(image: Any) -> dict[str, Any]:
        return {"doubled": torch.from_dlpack(image).to("cuda", non_blocking=True) * 2}

    def chain(model: str, *, on_gpu: bool) -> Callable[..., Any]:
        @triton_context
        @batch
        def call(image: Any, triton_context: Any) -> dict[str, Any]:
            doubled = torch.from_dlpack(image).to("cuda") * 2
            scores: dict[str, Any] = triton_context.infer(
                model, {"image": doubled if on_gpu else doubled.cpu().numpy()}
            )
            return scores

        return call

    image = [Tensor(name="image", dtype=np.float32, shape=IMAGE)]
    scores = [Tensor(name="scores", dtype=np.float32, shape=(1000,))]
    doubled = [Tensor(name="doubled", dtype=np.float32, shape=IMAGE)]
    config = TritonConfig(http_port=0, grpc_port=0, metrics_port=0)
    environment = mock.patch.dict(os.environ, {"PYTRITON_PAGE_LOCKS": str(int(page_locked))})
    with environment, Triton(config=config, security_config=TritonSecurityConfig(restricted_endpoints=[])) as triton:
        for name, function, outputs, gpu_tensors in (
            ("classify", classify, scores, False),
            ("classify_on_gpu", classify, scores, True),
            ("double", double, doubled, False),
            ("double_on_gpu", double, doubled, True),
            ("chain", chain("classify", on_gpu=False), scores, False),
            ("chain_on_gpu", chain("classify_on_gpu", on_gpu=True), scores, True),
        ):
            settings = ModelConfig(max_batch_size=max(COUNTS), gpu_tensors=gpu_tensors)
            triton.bind(name, function, inputs=image, outputs=outputs, config=settings)
        triton.run()
        yield triton


class Sender:
    """Sends requests of some images, over one connection.

    Args:
        port: The server's port for HTTP.
        count: Images of a request.
    """

    def __init__(self, port: int, count: int) -> None:
        self._client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}")
        self._images = np.random.default_rng(0).random((count, *IMAGE), np.float32)
        size = self._images.nbytes
        self._regions = {name: shared.create_shared_memory_region(name, size, 0) for name in ("sent", "received")}
        for name, region in self._regions.items():
            self._client.register_cuda_shared_memory(name, shared.get_raw_handle(region), 0, size)
        shared.set_shared_memory_region(self._regions["sent"], [self._images])

    def send(self, model: str, output: str, *, on_gpu: bool, output_on_gpu: bool = False) -> None:
        """Sends a request, with the images in its body or on the GPU."""
        image = tritonclient.http.InferInput("image", self._images.shape, "FP32")
        wanted = tritonclient.http.InferRequestedOutput(output, binary_data=True)
        if on_gpu:
            image.set_shared_memory("sent", self._images.nbytes)
        else:
            image.set_data_from_numpy(self._images)
        if output_on_gpu:
            wanted.set_shared_memory("received", self._images.nbytes)
        result = self._client.infer(model, [image], outputs=[wanted])
        if not output_on_gpu:
            result.as_numpy(output)

    def close(self) -> None:
        """Releases the memory of the GPU."""
        for name, region in self._regions.items():
            self._client.unregister_cuda_shared_memory(name)
            shared.destroy_shared_memory_region(region)
        self._client.close()


WAYS: dict[str, dict[str, Any]] = {
    "images in the request": {"model": "classify", "output": "scores", "on_gpu": False},
    "images on the GPU, copied to memory": {"model": "classify", "output": "scores", "on_gpu": True},
    "images on the GPU": {"model": "classify_on_gpu", "output": "scores", "on_gpu": True},
    "and the result, copied through memory": {
        "model": "double",
        "output": "doubled",
        "on_gpu": True,
        "output_on_gpu": True,
    },
    "and the result": {"model": "double_on_gpu", "output": "doubled", "on_gpu": True, "output_on_gpu": True},
    "a chain of two models, through memory": {"model": "chain", "output": "scores", "on_gpu": True},
    "a chain of two models": {"model": "chain_on_gpu", "output": "scores", "on_gpu": True},
}


def time_of(send: Callable[[], None], seconds: float) -> float:
    """Returns the median time of a call, in milliseconds."""
    for _ in range(3):
        send()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        send()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    """Prints a table: milliseconds of a request, medians of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    found: dict[str, dict[int, list[float]]] = {}
    for _ in range(arguments.rounds):
        for page_locked in (False, True):
            with serving(page_locked=page_locked) as triton:
                for count in COUNTS:
                    sender = Sender(triton.config.http_port or 0, count)
                    for name, way in WAYS.items():
                        if not page_locked and way["on_gpu"]:
                            continue
                        suffix = ", page-locked" if page_locked and not way["on_gpu"] else ""
                        time_ms = time_of(functools.partial(sender.send, **way), arguments.seconds)
                        found.setdefault(name + suffix, {}).setdefault(count, []).append(time_ms)
                    sender.close()
    print(f"{torch.cuda.get_device_name(0)}; milliseconds of a request, medians of {arguments.rounds} rounds")
    print("| " + " | ".join(["images of a request", *map(str, COUNTS)]) + " |")
    for name, by_count in found.items():
        medians = [f"{statistics.median(by_count[count]):.2f}" for count in COUNTS]
        print("| " + " | ".join([name, *medians]) + " |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
