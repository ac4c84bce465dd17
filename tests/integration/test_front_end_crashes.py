"""Requests of other clients at which the bundled server's front end crashes are survived: it is restarted."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import tritonclient.grpc
from serving import (
    HOST,
    InferenceServerException,
    at_once,
    bind_floats,
    echoes,
    infer_json,
    running_triton,
    server_of,
    servers,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig


@pytest.fixture
def triton():
    with running_triton() as triton:
        yield triton


def test_a_request_that_crashes_the_front_end_is_survived(triton):
    bind_floats(triton, "echo", batch(lambda x: [x]))
    triton.run()
    before = server_of(triton).pid
    wanted = [{"name": "y", "parameters": {"classification": 1}}]
    with pytest.raises(OSError):
        infer_json(triton, "echo", [{"name": "x", "shape": [1, 0], "datatype": "FP32", "data": []}], outputs=wanted)

    wait_until(lambda: [server for server in servers() if server.pid != before])
    wait_until(lambda: echoes(triton))


def floats():
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return tensor


def test_grpc_requests_that_another_client_abandons_are_survived(triton):
    @batch
    def echo_soon(x):
        time.sleep(random.random() * 0.004)
        return [x]

    bind_floats(triton, "echo", echo_soon, config=ModelConfig(max_batch_size=64))
    triton.run()

    def give_up(_):
        with tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}") as client:
            for _ in range(400):
                with contextlib.suppress(InferenceServerException):
                    client.infer("echo", [floats()], client_timeout=random.random() * 0.006)

    at_once(8, give_up)

    wait_until(lambda: echoes(triton))


MIXED_STREAM = """
import os, sys, threading
import numpy as np
import tritonclient.grpc

tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
client = tritonclient.grpc.InferenceServerClient(sys.argv[1])
broken = threading.Event()
client.start_stream(lambda result, error: error is not None and broken.set())
for name in ["stream", sys.argv[2]] * 5:
    try:
        client.async_stream_infer(name, [tensor])
    except tritonclient.utils.InferenceServerException:
        break
broken.wait(0.5)
os._exit(0)  # the server may never end the stream
"""


@pytest.mark.parametrize("other", ["echo", "no such model"])
def test_ordinary_models_on_a_grpc_stream_of_another_client_are_survived(triton, other):
    def stream(requests):
        for _ in range(3):
            yield [{"y": request["x"]} for request in requests]

    bind_floats(triton, "echo", batch(lambda x: [x]))
    bind_floats(triton, "stream", stream, config=ModelConfig(decoupled=True))
    triton.run()
    command = [sys.executable, "-c", MIXED_STREAM, f"{HOST}:{triton.config.grpc_port}", other]
    at_once(5, lambda _: subprocess.run(command, check=True, timeout=60))

    wait_until(lambda: echoes(triton))
