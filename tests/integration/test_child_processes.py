"""Processes that a process instance starts with multiprocessing: they have the functions and classes of the program."""

from __future__ import annotations

import pytest
from serving import Script

# Without `if __name__ == "__main__":`, since neither a worker process nor its children run the script.
SCRIPT = """
import concurrent.futures
import dataclasses
import multiprocessing

import numpy as np
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

FACTOR = None


class WrongNumber(Exception):
    pass


@dataclasses.dataclass
class Number:
    value: float


def prepare(factor):
    global FACTOR
    FACTOR = factor


def multiply(number):
    if number.value < 0:
        raise WrongNumber(number.value)
    return Number(number.value * FACTOR)


def put(queue, number):
    prepare(5)
    queue.put(multiply(number))


class Model:
    def __init__(self, method):
        context = multiprocessing.get_context(method)
        self.pool = context.Pool(1, prepare, (2,))
        self.executor = concurrent.futures.ProcessPoolExecutor(1, context, prepare, (3,))
        self.context = context

    @batch
    def __call__(self, x):
        numbers = [Number(float(value)) for value in x[:, 0]]
        results = [*self.pool.map_async(multiply, numbers).get(60), *self.executor.map(multiply, numbers, timeout=60)]
        queue = self.context.Queue()
        process = self.context.Process(target=put, args=(queue, numbers[0]))
        process.start()
        results.append(queue.get(timeout=60))
        process.join()
        assert all(type(result) is Number for result in results)
        try:
            self.pool.apply_async(multiply, (Number(-1.0),)).get(60)
        except WrongNumber:
            return [np.array([[result.value for result in results]])]

    def close(self):
        self.pool.terminate()
        self.executor.shutdown()


with Triton() as triton:
    instance = ProcessInstance(Model, args=[METHOD])
    triton.bind("Model", instance, inputs=[Tensor((1,), float, "x")], outputs=[Tensor((-1,), float, "y")])
    triton.run()
    with ModelClient(f"localhost:{triton.config.http_port}", "Model", inference_timeout_s=120) as client:
        print(client.infer_batch(np.array([[7.0]]))["y"].tolist(), flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_run_functions_of_the_script(tmp_path, method):
    with Script(tmp_path, SCRIPT.replace("METHOD", repr(method))) as script:
        assert script.line() == "[[14.0, 21.0, 35.0]]"
        assert script.wait() == 0, script.stderr
        assert script.workspaces() == []
