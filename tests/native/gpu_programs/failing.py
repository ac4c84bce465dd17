"""A GPU that fails, and recovers, on the real server: its requests get errors, and nothing else happens."""

from __future__ import annotations

import os
import pathlib
import tempfile

import numpy as np
from gpu import library, to_gpu, wait_until_freed

from pytriton.client import ModelClient, PyTritonClientInferenceServerError
from pytriton.decorators import batch, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

X = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
Y = [Tensor(name="y", shape=(-1,), dtype=np.float32)]
ROWS = np.arange(2000, dtype=np.float32).reshape(2, 1000)
made = []


@batch
def kept(x):
    return {"y": made[0]}


@batch
async def awaited(x):
    return {"y": made[0]}


@batch
def taken(x):
    return {"y": np.asarray(x)}


@triton_context
@batch
def calling(x, triton_context):
    return triton_context.infer("taken", {"x": made[0]})


@batch
def in_memory(x):
    return {"y": x * 2}


with tempfile.TemporaryDirectory() as folder:
    switch = pathlib.Path(folder, "fails")
    os.environ["FAKE_CUDA_FAILS"] = str(switch)  # also in the server
    made.append(to_gpu(ROWS))
    before = library.fake_cuda_memories()
    config = TritonConfig(http_port=0, grpc_port=0, metrics_port=0)
    with Triton(config=config) as triton:
        for function in (kept, awaited, taken, calling, in_memory):
            settings = ModelConfig(max_batch_size=8, gpu_tensors=function is taken)
            triton.bind(function.__name__, function, inputs=X, outputs=Y, config=settings)
        triton.run()
        clients = {
            function.__name__: ModelClient(f"127.0.0.1:{triton.config.http_port}", function.__name__)
            for function in (kept, awaited, calling, in_memory)
        }
        for _ in range(3):
            for name in ("kept", "awaited", "calling"):
                assert np.array_equal(clients[name].infer_batch(ROWS)["y"], ROWS), name
            switch.touch()
            for name in ("kept", "awaited", "calling"):
                for _ in range(20):
                    try:
                        clients[name].infer_batch(ROWS)
                    except PyTritonClientInferenceServerError as error:
                        assert "CUDA error 719" in str(error), error
                    else:
                        raise AssertionError(f"{name} does not fail")
                assert np.array_equal(clients["in_memory"].infer_batch(ROWS)["y"], ROWS * 2)
            switch.unlink()
        for client in clients.values():
            client.close()
    wait_until_freed(before)
print("passed")
