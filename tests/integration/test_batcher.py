"""When Triton's batcher is woken: not while the function is busy, and whenever an instance is idle."""

from __future__ import annotations

import statistics
import threading
import time

from footprint import sleeps_of
from gates import Gate, is_pending, row
from serving import Background, bind_floats, infer_json, json_floats, server_of, wait_until

from pytriton.model_config import DynamicBatcher, ModelConfig

COUNT = 50


def send_back(requests):
    return [[request["x"]] for request in requests]


def test_requests_do_not_wake_the_batcher_while_the_function_is_busy(triton, client, name):
    bind_floats(triton, f"{name}_other", send_back)  # what the server starts with its first model runs now
    gate = Gate()
    gate.opened.set()
    server = server_of(triton)
    others = sleeps_of(server)
    # With its own settings: the backend would build the batches in place of a batcher with default ones.
    batcher = DynamicBatcher(preferred_batch_size=[COUNT])
    bind_floats(triton, name, gate, config=ModelConfig(max_batch_size=COUNT, batcher=batcher))
    client.infer(name, {"x": row(0)})
    gate.opened.clear()
    gate.entered.clear()
    busy = Background(lambda: client.infer(name, {"x": row(1)}))
    assert gate.entered.wait(30)

    def sleeps_since(before):
        return {thread: count - before.get(thread, count) for thread, count in sleeps_of(server).items()}

    before = {thread: count for thread, count in sleeps_of(server).items() if thread not in others}
    # The thread of the instance looks 20 times a second whether the worker is still there.
    since = wait_until(lambda: (found := sleeps_since(before)) and max(found.values()) > 3 and found)
    instance = max(since, key=since.get)
    waiting = []
    for _ in range(COUNT):
        waiting.append(Background(lambda: infer_json(triton, name, [json_floats([2])])))
        wait_until(lambda: is_pending(triton, name, len(waiting)))
    batcher = max(sleeps_since(before)[thread] for thread in before if thread != instance)
    gate.opened.set()
    for request in (busy, *waiting):
        request.finish()

    assert batcher < COUNT / 2, "it looks twice a second by itself"
    assert sum(len(each) for each in gate.batches) == COUNT + 2


def test_an_idle_instance_takes_requests_while_another_one_is_busy(triton, grpc_client, name):
    entered, opened = threading.Event(), threading.Event()

    def infer(requests):
        if requests[0]["x"].item() == 1:
            entered.set()
            assert opened.wait(30)
        return [[request["x"]] for request in requests]

    def send(number):
        start = time.monotonic()
        assert grpc_client.infer(name, {"x": row(number)})["y"].item() == number
        return time.monotonic() - start

    config = ModelConfig(max_batch_size=1, batcher=DynamicBatcher(preferred_batch_size=[1]))
    bind_floats(triton, name, [infer, infer], config=config)
    for _ in range(10):
        send(0)
    busy = Background(lambda: send(1))
    assert entered.wait(30)

    durations = [send(number) for number in range(2, 13)]
    opened.set()
    busy.finish()

    assert busy.error is None
    assert statistics.median(durations) < 0.2, "they wait for no batcher that looks by itself"
