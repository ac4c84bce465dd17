"""The event loops in which coroutines run: one for each model."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading

import numpy as np
import pytest
from serving import bind_floats, send_floats, wait_until
from streaming import Gates, behind, one_by_one, row, send_number


async def double(requests):
    await asyncio.sleep(0)
    return [{"y": request["x"] * 2} for request in requests]


def test_the_instances_of_a_model_share_one_event_loop(triton, grpc_client, name):
    gates = Gates()
    bind_floats(triton, name, [behind(gates), behind(gates)], config=one_by_one(max_in_flight=1))
    requests = [send_number(grpc_client, name, number) for number in range(2)]
    wait_until(lambda: len(gates.entered) == 2)

    assert len(gates.loops) == 1
    assert [each.name for each in threading.enumerate()].count(f"pytriton-loop-{name}") == 1
    gates.open(0, 1)
    assert [request.finish().result for request in requests] == [0, 1]


def test_each_model_has_its_own_event_loop(triton, name):
    loops = {}

    def reports(which):
        async def report(requests):
            loops[which] = asyncio.get_running_loop()
            return requests

        return report

    for which in ("one", "other"):
        bind_floats(triton, f"{name}_{which}", reports(which))
        send_floats(triton, f"{name}_{which}", [1])

    assert loops["one"] is not loops["other"]


def test_a_coroutine_that_blocks_its_loop_does_not_hold_up_other_models(triton, grpc_client, name):
    entered, gate = threading.Event(), threading.Event()

    async def block(requests):
        entered.set()
        assert gate.wait(30)
        return requests

    bind_floats(triton, f"{name}_blocks", block)
    bind_floats(triton, name, double)
    blocked = send_number(grpc_client, f"{name}_blocks", 1)
    assert entered.wait(30)

    assert send_floats(triton, name, [1]) == [2]
    assert blocked.is_alive()
    gate.set()
    assert blocked.finish().result == 1


def test_calls_share_one_loop_and_tasks_outlive_them(triton, name):
    numbers = itertools.count()
    state = {}

    async def count():
        while True:
            state["queue"].put_nowait(next(numbers))
            await asyncio.sleep(0.001)

    async def take(requests):
        if not state:
            state["queue"] = asyncio.Queue()
            state["task"] = asyncio.create_task(count())
        number = await state["queue"].get()
        return [{"y": np.full_like(request["x"], number)} for request in requests]

    bind_floats(triton, name, take)

    assert [send_floats(triton, name, [1]) for _ in range(3)] == [[0], [1], [2]]
    state["task"].get_loop().call_soon_threadsafe(state["task"].cancel)


async def end_by_a_task():
    async def leave():
        sys.exit(3)

    await asyncio.wait([asyncio.create_task(leave())])


async def end_by_a_callback():
    def interrupt():
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(0.01)


async def stop_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", [end_by_a_task, end_by_a_callback, stop_the_loop])
def test_an_event_loop_that_a_model_stops_is_restarted(triton, client, name, end, caplog):
    async def infer(requests):
        await end()
        return requests

    bind_floats(triton, name, infer)

    for number in range(3):
        assert client.infer(name, {"x": row(number)})["y"].tolist() == [[number]]
    assert "event loop, which is restarted" in caplog.text
