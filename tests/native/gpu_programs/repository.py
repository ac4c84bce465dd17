"""Models of a repository keep tensors on a GPU, on the real server."""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np

from pytriton.client import ModelClient
from pytriton.triton import Triton, TritonConfig

MODEL = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import triton_python_backend_utils as pb_utils
from gpu import to_gpu


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.output_of(request)]) for request in requests]

    def output_of(self, request):
        return pb_utils.Tensor.from_dlpack("y", self.serve(request))

    def serve(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "x")
        {body}
"""
KEPT = """
        return to_gpu(tensor.as_numpy() * 2 + (0 if tensor.is_cpu() else 0.5))
"""
CALLING = """
        results = []
        for memory in (pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU):
            call = pb_utils.InferenceRequest(
                "kept", ["y"], [pb_utils.Tensor.from_dlpack("x", to_gpu(tensor.as_numpy()))],
                preferred_memory=pb_utils.PreferredMemory(memory, 0),
            )
            y = pb_utils.get_output_tensor_by_name(call.exec(), "y")
            assert y.is_cpu() == (memory == pb_utils.TRITONSERVER_MEMORY_CPU), memory
            results.append(y.as_numpy())
        assert np.array_equal(*results)
        return to_gpu(results[0])
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""

here = str(pathlib.Path(__file__).parent)
with tempfile.TemporaryDirectory() as folder:
    for name, body in (("kept", KEPT), ("calling", CALLING)):
        version = pathlib.Path(folder, name, "1")
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(MODEL.format(folder=here, body=body.strip()))
    config = TritonConfig(http_port=0, grpc_port=0, metrics_port=0, model_repository=pathlib.Path(folder))
    with Triton(config=config) as triton:
        triton.run()
        url = f"127.0.0.1:{triton.config.http_port}"
        for size in (1, 1000, 1 << 20):
            x = np.arange(2 * size, dtype=np.float32).reshape(2, size) % 1000
            for name, expected in (("kept", x * 2), ("calling", x * 2 + 0.5)):
                with ModelClient(url, name) as client:
                    for _ in range(3):
                        assert np.array_equal(client.infer_batch(x)["y"], expected), (name, size)
print("passed")
