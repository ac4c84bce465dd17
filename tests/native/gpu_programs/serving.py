"""Functions return tensors of a GPU, and send them to other models, on the real server."""

from __future__ import annotations

import gc
import os

import numpy as np
from gpu import library, to_gpu, wait_until_freed

from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.decorators import batch, pad_batch, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

SIZES = (1, 3, 1000, 1 << 20)
X = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
Y = [Tensor(name="y", shape=(-1,), dtype=np.float32)]
seen = set()


@batch
def double(x):
    seen.add(f"double got {type(x).__name__}")
    return {"y": to_gpu(np.asarray(x) * 2)}


@batch
def unchanged(x):
    return {"y": x}


@batch
@pad_batch
def padded(x):
    assert isinstance(x, np.ndarray), type(x)
    return {"y": x * 4}


@batch
async def coroutine(x):
    return {"y": to_gpu(np.asarray(x) + 1)}


def by_request(requests):
    return [{"y": to_gpu(np.asarray(request["x"]) + 2)} for request in requests]


@batch
def steps(x):
    for step in range(3):
        yield {"y": to_gpu(x + step)}


@batch
def in_memory(x):
    seen.add(f"in_memory got {type(x).__name__}")
    return {"y": x * 3}


@batch
def other_dtype(x):
    return {"y": to_gpu(np.asarray(x).astype(np.int16))}


@triton_context
@batch
def chain(x, triton_context):
    on_gpu = to_gpu(x)
    total = np.zeros_like(x)
    for name in ("double", "coroutine", "by_request", "in_memory", "unchanged", "padded"):
        total += triton_context.infer(name, {"x": on_gpu})["y"]
    return {"y": total}


library.cuInit(0)
before = library.fake_cuda_memories()
functions = (double, unchanged, padded, coroutine, by_request, steps, in_memory, other_dtype, chain)
config = TritonConfig(http_port=0, grpc_port=0, metrics_port=0)
with Triton(config=config) as triton:
    for function in functions:
        gpu_tensors = function not in (in_memory, chain)
        settings = ModelConfig(max_batch_size=8, gpu_tensors=gpu_tensors, decoupled=function is steps)
        triton.bind(function.__name__, function, inputs=X, outputs=Y, config=settings)
    triton.run()
    url = f"127.0.0.1:{triton.config.http_port}"
    for size in SIZES:
        x = np.arange(2 * size, dtype=np.float32).reshape(2, size) % 1000
        for function, expected in (
            (double, x * 2),
            (unchanged, x),
            (padded, x * 4),
            (coroutine, x + 1),
            (by_request, x + 2),
            (in_memory, x * 3),
            (other_dtype, x),
            (chain, x * 2 + (x + 1) + (x + 2) + x * 3 + x + x * 4),
        ):
            with ModelClient(url, function.__name__) as client:
                for _ in range(3):
                    assert np.array_equal(client.infer_batch(x)["y"], expected), (function, size)
        with DecoupledModelClient(f"grpc://127.0.0.1:{triton.config.grpc_port}", "steps") as client:
            found = [reply["y"] for reply in client.infer_batch(x)]
            assert len(found) == 3
            assert all(np.array_equal(each, x + step) for step, each in enumerate(found))
print(*sorted(seen), sep="\n")
print("page-locked:", library.fake_cuda_ranges_locked() > 0)
if not {"FAKE_CUDA_WITHOUT_IPC", "FAKE_CUDA_OPENS_NOTHING"} & os.environ.keys():
    assert seen == {"double got GpuTensor", "double got ndarray", "in_memory got ndarray"}, seen
gc.collect()
wait_until_freed(before)
print("passed")
