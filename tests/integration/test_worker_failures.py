"""Workers that crash: their requests fail within a second, and another worker serves the next."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
from serving import Background, bind_floats, double, held_model, send_floats, wait_until

from pytriton.model_config import ModelConfig

NOTICED_S = 1.0
X = np.ones((1, 1), np.float32)


def worker_threads(name):
    return [thread for thread in threading.enumerate() if thread.name == f"pytriton-worker-{name}"]


def end_thread(triton, name, thread):
    """Has a model's thread end as if it had failed outside of the callable."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    for connected in connections(triton, name):
        connected.channel.wake()
    wait_until(lambda: not thread.is_alive(), what="the worker's end")


def connections(triton, name):
    """The connections between a model's instances and its workers."""
    workers = [worker for model in triton._session.models if model.spec.name == name for worker in model._workers]
    return [connected for worker in workers for connected in list(worker._connected)]


def drop_connections(triton, name):
    """Cuts the connections between a model's instances and its workers, as when a worker's process ends."""
    for connected in connections(triton, name):
        connected.channel.close()


def test_a_dead_worker_is_replaced_and_the_next_request_succeeds(triton, client, name):
    bind_floats(triton, name, double)
    assert client.infer(name, {"x": X})["y"].item() == 2
    (thread,) = worker_threads(name)

    end_thread(triton, name, thread)

    assert client.infer(name, {"x": X})["y"].item() == 2
    (replacement,) = worker_threads(name)
    assert replacement is not thread


def test_a_worker_that_dies_repeatedly_is_replaced_each_time(triton, name):
    bind_floats(triton, name, [double, double], config=ModelConfig(max_batch_size=1))

    for _ in range(3):
        for thread in worker_threads(name):
            end_thread(triton, name, thread)
        assert [send_floats(triton, name, [1]) for _ in range(4)] == [[2]] * 4


def test_requests_of_a_dying_worker_fail_at_once(triton, name):
    entered, gate = held_model(triton, name)
    request = Background(lambda: send_floats(triton, name, [1]))
    assert entered.wait(30)

    start = time.monotonic()
    drop_connections(triton, name)
    request.finish()

    assert request.ended - start < NOTICED_S
    assert request.result == f"model '{name}': the worker has gone"
    gate.set()
    assert send_floats(triton, name, [7]) == [7]


def test_other_models_are_unaffected_by_a_dying_worker(triton, name):
    bind_floats(triton, f"{name}_other", double)
    bind_floats(triton, name, double)
    (other,) = worker_threads(f"{name}_other")

    end_thread(triton, name, worker_threads(name)[0])

    assert send_floats(triton, f"{name}_other", [1]) == [2]
    assert worker_threads(f"{name}_other") == [other]
