"""Helpers of the tests of remote instances: models that report which actor serves them."""

from __future__ import annotations

import os
import sys

import cloudpickle
import numpy as np
import psutil
from serving import FLOATS_IN, is_running, wait_until

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.ray import RemoteInstance

# Test modules cannot be imported elsewhere, as the modules of a user can.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MEMORY = 80 << 20  # of the object store of each node
ONE_BY_ONE = ModelConfig(max_batch_size=1)
PID_OUT = [Tensor(name="y", shape=(-1,), dtype=np.float32), Tensor(name="pid", shape=(1,), dtype=np.int64)]


class Double:
    """Doubles numbers, and returns its process; -1 waits for a gate, -2 kills the process."""

    def __init__(self, folder=None):
        self.folder = folder

    @batch
    def __call__(self, x):
        if x[0, 0] == -1 and not (self.folder / "gate").exists():
            (self.folder / f"entered-{os.getpid()}").touch()
            wait_for(self.folder / "gate")
        if x[0, 0] == -2:
            os._exit(1)
        return {"y": x * 2, "pid": np.full((len(x), 1), os.getpid())}

    def close(self):
        if self.folder is not None:
            (self.folder / f"closed-{os.getpid()}").touch()


def wait_for(path):
    import time

    while not path.exists():
        time.sleep(0.01)


def instances(count=2, *args, **settings):
    """Remote instances of `Double`, which hold no CPU, so that any number of tests may run."""
    return [RemoteInstance(Double, args=args, num_cpus=0, **settings) for _ in range(count)]


def bind_pid(triton, name, infer_func, config=ONE_BY_ONE):
    """Binds a model with one input ``x``, and ``pid`` besides the output ``y``."""
    triton.bind(name, infer_func, FLOATS_IN, PID_OUT, config=config)


def served_by(client, name, value=1.0):
    """Sends a number, checks that it is doubled, and returns the process that responded."""
    outputs = client.infer(name, {"x": np.array([[value]], np.float32)})
    assert outputs["y"].tolist() == [[2 * value]]
    return outputs["pid"].item()


def entered(folder, but=()):
    """Waits until a held request is in a process, and returns that."""

    def find():
        found = [int(path.name.removeprefix("entered-")) for path in folder.glob("entered-*")]
        return [pid for pid in found if pid not in but]

    return wait_until(find)[0]


def has_ended(pid):
    return not (psutil.pid_exists(pid) and is_running(psutil.Process(pid)))
