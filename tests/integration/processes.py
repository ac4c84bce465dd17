"""Helpers of the tests of process instances: models that report their process, and the processes of a model."""

from __future__ import annotations

import os
import re
import sys

import cloudpickle
import numpy as np
import psutil
from serving import FLOATS_IN, Background, bind_floats, is_running, request_json, send_floats, wait_until

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance

# Test modules cannot be imported elsewhere, as the modules of a user can.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ONE_BY_ONE = ModelConfig(max_batch_size=1)
PID_OUT = [Tensor(name="y", shape=(-1,), dtype=np.float32), Tensor(name="pid", shape=(1,), dtype=np.int64)]


class Multiply:
    """Multiplies by a number, and tells the process that it does so in."""

    def __init__(self, factor=2):
        self.factor = np.float32(factor)

    @batch
    def __call__(self, x):
        return {"y": x * self.factor, "pid": np.full((len(x), 1), os.getpid())}


def meet(folder):
    """Waits until two processes have come here, so that neither can serve the other's request."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) == 2, 20)


class Meet(Multiply):
    """A `Multiply` that responds once two processes have a request."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    @batch
    def __call__(self, x):
        meet(self.folder)
        return {"y": x * self.factor, "pid": np.full((len(x), 1), os.getpid())}


def bind_pid(triton, name, infer_func, **arguments):
    """Binds a model with one input ``x``, and ``pid`` besides the output ``y``."""
    triton.bind(name, infer_func, FLOATS_IN, PID_OUT, **arguments)


def pid_of_response(client, name, value=1):
    """Sends a number, checks that it is doubled, and returns the process that responded."""
    outputs = client.infer(name, {"x": np.array([[value]], np.float32)})
    assert outputs["y"].tolist() == [[2 * value]]
    return outputs["pid"].item()


def processes_of(name, pid=None):
    """The worker processes of a model, by the number of the instance."""
    found = {}
    for child in psutil.Process(pid or os.getpid()).children():
        try:
            match = re.search(rf"model '{name}' \(instance (\d+)\)", " ".join(child.cmdline()))
        except psutil.Error:
            continue
        if match and is_running(child):
            found[int(match[1])] = child
    return found


def process_of(name, instance=0):
    """The worker process of an instance, once there is one; None before."""
    return processes_of(name).get(instance)


class Held:
    """Doubles numbers; below zero, it does so once a gate is open."""

    def __init__(self, folder):
        self.folder = folder

    @batch
    def __call__(self, x):
        if x[0, 0] < 0:
            (self.folder / f"entered{x[0, 0]:.0f}").touch()
            wait_until((self.folder / "gate").exists, 60)
        return [x * 2]


def bind_held(triton, name, folder, instances=1):
    bind_floats(triton, name, [ProcessInstance(Held, args=[folder])] * instances, config=ONE_BY_ONE)


def hold(triton, name, folder, number=-1):
    """Sends a number to a `Held` that is held, and returns once it is."""
    request = Background(lambda: send_floats(triton, name, [number]))
    wait_until((folder / f"entered{number}").exists)
    return request


@batch
def double(x):
    return [x * 2]


def is_ready(triton, name):
    return request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


def function():
    """A factory of a plain function."""
    return lambda requests: [[request["x"] * 2] for request in requests]


def generator():
    """A factory of a generator function."""

    @batch
    def steps(x):
        for number in range(3):
            yield [x + number]

    return steps
