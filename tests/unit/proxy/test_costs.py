"""Counts of a worker's work per batch: times vary between machines, counts do not."""

from __future__ import annotations

import collections
import os
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from wiring import TIMEOUT_S, BackendsDoorbell, channels, serve_instance, wait_until

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.proxy.transport import doorbell
from pytriton.proxy.wire.inference import RequestMetadata
from pytriton.proxy.worker.worker import Worker

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from instructions import python_instructions

LIMIT = 1100 if sys.version_info >= (3, 12) else 1220  # instructions; 1,206 with Python 3.11
INPUT, OUTPUT = ([Tensor(name=name, shape=(-1,), dtype=np.float32)] for name in "xy")


@batch
def batched(x):
    return [x + 1]


def listed(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.fixture
def serve(wire):
    """Makes functions that serve a batch of so many requests once."""

    def make(infer_func, requests, metadata=()):
        connection = wire(INPUT, OUTPUT)
        worker = Worker(infer_func, connection.signature)
        place = connection.lay_down([{"x": np.zeros((1, 16), np.float32)}] * requests, metadata)

        def once():
            worker._infer(connection.batch_at(*place), connection.results)

        for _ in range(5):
            once()
        return once

    return make


def test_a_batch_takes_as_much_python_for_many_requests_as_for_one(serve):
    one, many = (python_instructions(serve(batched, requests)) for requests in (1, 64))

    assert many == one
    assert one < LIMIT


@pytest.mark.parametrize("infer_func", [batched, listed])
def test_unused_ids_and_parameters_take_no_python(serve, infer_func):
    metadata = [RequestMetadata(f"id {request}", parameters={"n": request}) for request in range(64)]

    assert python_instructions(serve(infer_func, 64, metadata)) < python_instructions(serve(infer_func, 64)) + 10


def test_a_request_in_a_list_takes_little_python(serve):
    few, many = (python_instructions(serve(listed, requests)) for requests in (8, 64))

    assert (many - few) / 56 < 420  # 358 with Python 3.12


def test_a_request_in_a_list_takes_as_much_python_in_a_large_batch(serve):
    few, many, most = (python_instructions(serve(listed, requests)) for requests in (8, 64, 512))

    assert (most - many) / 448 < 1.02 * (many - few) / 56


@pytest.mark.parametrize(("infer_func", "limit"), [(batched, 24_000), (listed, 48_000)])
def test_a_batch_of_many_requests_takes_little_memory(serve, infer_func, limit):
    once = serve(infer_func, 64)
    tracemalloc.start()
    try:
        once()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        once()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak - before < limit


SYSTEM_CALLS = {"recv", "recv_into", "recvmsg", "send", "sendmsg", "poll", "select", "sched_yield", "getpid", "read"}


@pytest.mark.parametrize("requests", [1, 64])
def test_a_batch_takes_two_system_calls(wire, monkeypatch, requests):
    """A sleep and a ring."""
    calls = collections.Counter()

    def counted(function):
        def count_and_call(*arguments):
            calls["futex"] += threading.current_thread() is not threading.main_thread()
            return function(*arguments)

        return count_and_call

    def count(frame, event, arg):
        if event == "c_call" and arg.__name__ in SYSTEM_CALLS:
            calls[arg.__name__] += 1

    for name in ("_syscall", "_syscall_on_two_words"):
        monkeypatch.setattr(doorbell, name, counted(getattr(doorbell, name)))
    monkeypatch.setenv("PYTRITON_SPIN", "0")  # how often it yields is up to the machine
    connection = wire(INPUT, OUTPUT)
    notification = BackendsDoorbell(connection.arena)
    worker = Worker(batched, connection.signature)
    ours, theirs = channels()
    threading.setprofile(count)
    try:
        serve_instance(worker, theirs, connection, doorbell=notification.offset)
    finally:
        threading.setprofile(None)
    _, fd, _ = ours.receive_fds()
    os.close(fd)

    def serve(count):
        for _ in range(count):
            sequence = notification.notification_count + 1
            notification.notify_of(sequence, *connection.lay_down([{"x": np.zeros((1, 16), np.float32)}] * requests))
            wait_until(lambda: notification.notification_count == sequence)  # noqa: B023

    serve(5)
    calls.clear()
    serve(100)
    ours.close()
    worker.close(TIMEOUT_S)

    assert calls["futex"] >= 100
    assert calls.total() <= 210  # sleeps time out now and then, and notifications may come before it sleeps
