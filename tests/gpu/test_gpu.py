"""Tensors of a real GPU, from clients to functions and back; run by hand where there is one, with PyTorch."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from pytriton.adapters import torch_model
from pytriton.client import FuturesModelClient, ModelClient
from pytriton.decorators import batch, triton_context
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
shared = pytest.importorskip("tritonclient.utils.cuda_shared_memory")

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
BATCHES = DynamicBatcher(max_queue_delay_microseconds=200_000)
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
LARGE = 1 << 20  # elements, so that pages are locked

MODEL = """
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))
        self.kind = args["model_instance_kind"]

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "x")
            x = torch.from_dlpack(tensor.to_dlpack()).to(self.device)
            if {calls}:
                call = pb_utils.InferenceRequest(
                    "kept", ["y"], [pb_utils.Tensor.from_dlpack("x", x)],
                    preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
                )
                y = pb_utils.get_output_tensor_by_name(call.exec(), "y")
                assert not y.is_cpu()
                y = torch.from_dlpack(y) + 1
            else:
                y = x * 2 if self.kind == "GPU" and not tensor.is_cpu() else x * 2 + 0.5
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", y)]))
        return responses
"""
CONFIG = """
backend: "python"
max_batch_size: 16
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
instance_group [{ kind: KIND_GPU gpus: [0] }]
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""


def repository(folder):
    for name, calls in (("kept", False), ("calling", True)):
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(MODEL.replace("{calls}", str(calls)))
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    seen = []

    @batch
    def gpu(x):
        seen.append((type(x).__name__, len(x)))
        return {"y": torch.from_dlpack(x).to("cuda") * 2}

    @batch
    def memory(x):
        seen.append((torch.from_numpy(x).is_pinned(), len(x)))
        return {"y": torch.from_numpy(x).to("cuda", non_blocking=True) * 3}

    @batch
    def half(x):
        return {"y": (torch.from_dlpack(x).to("cuda") / 2).to(torch.bfloat16)}

    @batch
    async def awaited(x):
        return {"y": torch.from_dlpack(x).to("cuda") + 5}

    @triton_context
    @batch
    def chain(x, triton_context):
        on_gpu = torch.from_numpy(x).to("cuda")
        total = 0
        for name in ("gpu", "memory", "kept"):
            total = total + torch.from_numpy(np.array(triton_context.infer(name, {"x": on_gpu})["y"]))
        return {"y": total}

    @batch
    def stream(x):
        for step in range(3):
            yield {"y": torch.from_numpy(x).to("cuda") + step}

    torch.zeros(1, device="cuda")
    config = TritonConfig(
        http_port=0, grpc_port=0, metrics_port=0, model_repository=repository(tmp_path_factory.mktemp("models"))
    )
    with Triton(config=config, security_config=TritonSecurityConfig(restricted_endpoints=[])) as triton:
        for function in (gpu, memory, half, awaited, chain, stream):
            settings = ModelConfig(
                max_batch_size=16,
                batcher=BATCHES if function in (gpu, memory) else DynamicBatcher(),
                gpu_tensors=function not in (memory, chain),
                decoupled=function is stream,
            )
            triton.bind(function.__name__, function, inputs=X, outputs=Y, config=settings)
        triton.run()
        yield triton, seen


def address(triton):
    return f"127.0.0.1:{triton.config.http_port}"


@pytest.fixture
def seen(served):
    served[1].clear()
    return served[1]


@contextlib.contextmanager
def region(client, name, size):
    handle = shared.create_shared_memory_region(name, size, 0)
    client.register_cuda_shared_memory(name, shared.get_raw_handle(handle), 0, size)
    try:
        yield handle
    finally:
        client.unregister_cuda_shared_memory(name)
        shared.destroy_shared_memory_region(handle)


def infer(triton, model, x, *, to_gpu=True, names=("x", "y")):
    """Sends an input from the memory of the GPU, and takes the output there, or in memory."""
    name = f"{model}-{threading.get_ident()}"
    client = tritonclient.http.InferenceServerClient(address(triton))
    with region(client, f"x-{name}", x.nbytes) as sent, region(client, f"y-{name}", x.nbytes) as received:
        shared.set_shared_memory_region(sent, [x])
        given = tritonclient.http.InferInput(names[0], x.shape, np_to_triton_dtype(x.dtype))
        given.set_shared_memory(f"x-{name}", x.nbytes)
        wanted = tritonclient.http.InferRequestedOutput(names[1], binary_data=True)
        if to_gpu:
            wanted.set_shared_memory(f"y-{name}", x.nbytes)
        result = client.infer(model, [given], outputs=[wanted])
        if not to_gpu:
            return result.as_numpy(names[1])
        return np.array(shared.get_contents_as_numpy(received, np.float32, x.shape))


def rows(count, size, start=0):
    return (np.arange(count * size, dtype=np.float32) % 1000 + start).reshape(count, size)


@pytest.mark.parametrize("to_gpu", [True, False])
@pytest.mark.parametrize("size", [1, 1000, LARGE])
def test_a_tensor_stays_on_the_gpu_from_client_to_function_and_back(served, seen, size, to_gpu):
    x = rows(2, size)
    assert np.array_equal(infer(served[0], "gpu", x, to_gpu=to_gpu), x * 2)
    assert seen == [("GpuTensor", 2)]


def test_requests_from_gpu_and_memory_are_one_batch(served, seen):
    results = {}

    def send(number):
        x = rows(1, 1000, start=number)
        if number % 2:
            results[number] = infer(served[0], "gpu", x)
        else:
            with ModelClient(address(served[0]), "gpu") as client:
                results[number] = client.infer_batch(x)["y"]

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        assert np.array_equal(result, rows(1, 1000, start=number) * 2)
    assert sum(count for _, count in seen) == 6


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_function_without_gpu_tensors_gets_them_in_memory(served, seen, size):
    x = rows(2, size)
    assert np.array_equal(infer(served[0], "memory", x), x * 3)


def test_large_inputs_lie_in_page_locked_memory(served, seen):
    with ModelClient(address(served[0]), "memory") as client:
        for count in (1, 5, 2, 16, 1):
            x = rows(count, LARGE)
            assert np.array_equal(client.infer_batch(x)["y"], x * 3)
    assert seen == [(True, count) for count in (1, 5, 2, 16, 1)]


@pytest.mark.parametrize("model", ["half", "awaited"])
def test_coroutines_and_functions_of_other_dtypes(served, model):
    x = rows(2, 1000)
    expected = x + 5 if model == "awaited" else (torch.from_numpy(x) / 2).to(torch.bfloat16).float().numpy()
    assert np.array_equal(infer(served[0], model, x), expected)
    with ModelClient(address(served[0]), model) as client:
        assert np.array_equal(client.infer_batch(x)["y"], expected)


def test_a_model_of_a_repository_gets_and_returns_tensors_on_its_gpu(served):
    x = rows(3, 1000)
    assert np.array_equal(infer(served[0], "kept", x), x * 2)
    with ModelClient(address(served[0]), "kept") as client:
        assert np.array_equal(client.infer_batch(x)["y"], x * 2 + 0.5)


@pytest.mark.parametrize("size", [1, 1000, LARGE])
def test_a_call_of_another_model_leaves_tensors_on_the_gpu(served, size):
    x = rows(2, size)
    assert np.array_equal(infer(served[0], "calling", x), x * 2 + 1)
    with ModelClient(address(served[0]), "chain") as client:
        assert np.array_equal(client.infer_batch(x)["y"], x * 2 + x * 3 + x * 2)


def test_many_calls_take_no_more_memory_of_the_gpu(served):
    x = rows(2, 1000)
    for _ in range(20):
        infer(served[0], "calling", x)
    free, _ = torch.cuda.mem_get_info()
    for _ in range(100):
        infer(served[0], "calling", x)
    assert torch.cuda.mem_get_info()[0] >= free - (8 << 20)


def test_a_function_that_keeps_a_tensor_keeps_its_contents(served):
    kept = []

    @batch
    def keeping(x):
        kept.append(torch.from_dlpack(x))
        return {"y": torch.from_dlpack(x)}

    served[0].bind("keeping", keeping, inputs=X, outputs=Y, config=ModelConfig(max_batch_size=4, gpu_tensors=True))
    for number in range(10):
        infer(served[0], "keeping", rows(1, 1000, start=number))
    for number, tensor in enumerate(kept):
        assert np.array_equal(tensor.cpu().numpy(), rows(1, 1000, start=number))


def test_a_module_keeps_tensors_on_its_gpu(served):
    network = torch.nn.Linear(1000, 1000)
    definition = torch_model(network, example=torch.zeros(1, 1000), device="cuda")
    served[0].bind("network", definition)
    x = rows(3, 1000) / 1000
    name = definition.inputs[0].name, definition.outputs[0].name
    with torch.inference_mode():
        expected = network(torch.from_numpy(x).cuda()).cpu().numpy()
    assert np.allclose(infer(served[0], "network", x, names=name), expected, atol=1e-5)
    with ModelClient(address(served[0]), "network") as client:
        assert np.allclose(client.infer_batch(x)[name[1]], expected, atol=1e-5)


def test_instances_run_on_devices_of_their_own(served):
    def on(device):
        network = torch.nn.Identity().to(device)

        @batch
        def infer(x):
            y = network(torch.from_dlpack(x).to(device)) * 2
            assert y.device.type == device
            return {"y": y}

        return infer

    config = ModelConfig(max_batch_size=4, gpu_tensors=True)
    served[0].bind("devices", [on("cuda"), on("cpu")], inputs=X, outputs=Y, config=config)
    x = rows(2, 1000)
    with FuturesModelClient(address(served[0]), "devices") as client:
        for future in [client.infer_batch(x) for _ in range(50)]:
            assert np.array_equal(future.result()["y"], x * 2)
    for _ in range(10):
        assert np.array_equal(infer(served[0], "devices", x), x * 2)


@pytest.mark.parametrize("name", ["nearest_neighbors", "pytorch"])
def test_the_examples_run(name, tmp_path):
    if name == "pytorch":
        command, client = (
            ["-m", "pytriton", "serve", str(EXAMPLES / "python_backend/pytorch/models")],
            "python_backend/pytorch",
        )
    else:
        source = (EXAMPLES / name / "server.py").read_text()
        (tmp_path / "server.py").write_text(source.replace("gateway=GatewayConfig()", ""))
        command, client = [str(tmp_path / "server.py")], name
    environment = {**os.environ, **{f"PYTRITON_TRITON_CONFIG_{each}_PORT": "0" for each in ("HTTP", "GRPC", "METRICS")}}
    with subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        url = next(found[1] for line in server.stdout if (found := re.search(r"(http://\S+:\d+)(/v2|\s|$)", line)))
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / client / "client.py"), "--url", url.removeprefix("http://")],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        server.send_signal(signal.SIGINT)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
