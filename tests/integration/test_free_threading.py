"""Free-threaded Python: instances in threads run in parallel, and the lock stays off."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess

import pytest
from serving import Script

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import http.client
import json
import sys
import threading
import time

import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

SECONDS, ROUNDS = 1.0, 5


def make():
    def work(requests):
        total = 0
        for number in range(200_000):
            total += number & 3
        return [{"y": request["x"] + 1} for request in requests]

    return work


def bind(triton, name, instances):
    inputs, outputs = [Tensor((1,), np.float32, "x")], [Tensor((1,), np.float32, "y")]
    triton.bind(name, [make() for _ in range(instances)], inputs, outputs, config=ModelConfig(max_batch_size=1))


def throughput(port, model):
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]})
    counts = []

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        end, count = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            connection.request("POST", f"/v2/models/{model}/infer", body)
            assert json.load(connection.getresponse())["outputs"][0]["data"] == [2.0]
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 4
    return sum(counts)


with Triton() as triton:
    bind(triton, "One", 1)
    bind(triton, "Two", 2)
    triton.run()
    port = triton.config.http_port
    ratios = [1 / throughput(port, "One") * throughput(port, "Two") for _ in range(ROUNDS)]
print(json.dumps({"gil": sys._is_gil_enabled(), "ratios": ratios}), flush=True)
"""


@pytest.fixture
def python(tmp_path):
    """A free-threaded interpreter in an environment with this package."""
    found = [shutil.which(f"python3.{minor}t") for minor in (14, 13)]
    found += sorted(pathlib.Path("~/.pyenv/versions").expanduser().glob("*t/bin/python"))
    interpreter = next(filter(None, found), None)
    if interpreter is None:
        pytest.skip("there is no free-threaded Python")
    subprocess.run([interpreter, "-m", "venv", tmp_path / "environment"], check=True)
    pip = [tmp_path / "environment/bin/pip", "install", "-q"]
    needed = [each for each in importlib.metadata.requires("pytriton") or () if "extra ==" not in each]
    subprocess.run([*pip, *(each for each in needed if "tritonclient" not in each)], check=True)
    subprocess.run([*pip, "--no-deps", f"--config-settings=build-dir={tmp_path}/build", ROOT], check=True)
    return tmp_path / "environment/bin/python"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_two_instances_in_threads_take_two_cores(tmp_path, python):
    with Script(tmp_path, SCRIPT, python=python) as script:
        found = json.loads(script.line())
    assert not found["gil"]
    assert statistics.median(found["ratios"]) > 1.4
