"""Repositories of models for the tests of worker processes, and views of their processes."""

from __future__ import annotations

import os
import pathlib
import signal
import sysconfig
import textwrap
import venv

import psutil
from serving import infer_json, is_running, request_json, server_of, token_of, wait_until

# Returns the double of a row, and the process's id behind it. A row that starts with -1 kills the process; one that
# starts with -2 takes as many seconds as its next value says; one with -3 closes all descriptors.
MODEL = """
import os
import pathlib
import signal
import time

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = pathlib.Path(__file__).parent


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        if (HERE / "start.py").exists():  # what a test wants to happen
            exec((HERE / "start.py").read_text(), {"args": args})

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        if x[0, 0] == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        if x[0, 0] == -2:
            time.sleep(float(x[0, 1]))
        if x[0, 0] == -3:
            os.closerange(0, 65_536)
        pid = np.full((len(x), 1), os.getpid(), np.float32)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", np.hstack([2 * x, pid]))])

    def finalize(self):
        print("finalized", self.args["model_name"], flush=True)
"""

CONFIG = """
backend: "python"
max_batch_size: 8
input [{name: "x", data_type: TYPE_FP32, dims: [-1]}]
output [{name: "y", data_type: TYPE_FP32, dims: [-1]}]
"""


# Serves a repository until something comes on its standard input; prints the port.
SERVE = """
import pathlib
import sys

from pytriton.triton import Triton, TritonConfig

with Triton(config=TritonConfig(model_repository=pathlib.Path(sys.argv[1]))) as triton:
    triton.run()
    print(triton.config.http_port, flush=True)
    sys.stdin.readline()
    print("stopped", flush=True)
"""


def write_model(repository, name, *, config="", code=MODEL, start=None):
    """Writes a model; returns the folder of its version."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG + textwrap.dedent(config))
    (folder / "model.py").write_text(code)
    if start is not None:
        (folder / "start.py").write_text(textwrap.dedent(start))
    return folder


def environment_in(folder):
    """An environment of this Python, with the packages of this one."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def execution_environment(path):
    return f'parameters {{key: "EXECUTION_ENV_PATH" value {{string_value: "{path}"}}}}'


def send_request(triton, model, *values, **fields):
    """Sends one row; returns the row of the response, or its error as text."""
    inputs = [{"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}]
    status, response = infer_json(triton, model, inputs, **fields)
    return response["outputs"][0]["data"] if status == 200 else response["error"]


def pid_of(triton, model):
    """The process that responds."""
    response = send_request(triton, model, 1)
    assert isinstance(response, list), response
    return int(response[-1])


def workers(process):
    """The worker processes of a server."""
    return [child for child in process.children() if is_running(child) and is_worker(child)]


def is_worker(process):
    try:
        return any(word.endswith("bootstrap.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def workers_of(triton):
    return workers(server_of(triton))


def kill(pid):
    """Kills a process, and waits until all of its threads have exited and its files are closed."""
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(process) and thread_count(pid) <= 1)


def thread_count(pid):
    try:
        return len(list(pathlib.Path(f"/proc/{pid}/task").iterdir()))
    except FileNotFoundError:
        return 0


def none_runs(processes):
    return not any(is_running(process) for process in processes)


def command(triton, model, verb):
    """Has the repository API load or unload a model: returns the status and the response."""
    return request_json(triton, "POST", f"/v2/repository/models/{model}/{verb}", b"{}", token_of(triton))


def state_of(triton, model):
    _, index = request_json(triton, "POST", "/v2/repository/index", b"{}", token_of(triton))
    return next((entry.get("state") for entry in index if entry["name"] == model), None)
