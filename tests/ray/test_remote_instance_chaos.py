"""Remote instances under load, while their actors and nodes are killed: every response is checked."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
from actors import MEMORY, bind_pid, has_ended, instances, served_by
from serving import Load, client_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SECONDS = 30.0
KILL_EVERY_S = 1.5


def under_load(triton, name, seconds, disturb):
    """Sends numbers in several threads meanwhile; returns the processes that responded, and how many did."""
    done = threading.Event()
    with client_of(triton, "grpc") as client:
        loads = [Load(lambda number: served_by(client, name, number), done) for _ in range(8)]
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                assert all(load.is_alive() for load in loads), "a request failed"
                disturb({load.responses[-1][1] for load in loads if load.responses})
        finally:
            done.set()
        for load in loads:
            load.join(60)
            assert not load.is_alive()
    responses = [pid for load in loads for _, pid in load.responses]
    return set(responses), len(responses)


def test_kills_of_actors_lose_no_request(triton, name):
    bind_pid(triton, name, instances(3, retries=2))
    chosen = random.Random(1)
    killed = []

    def kill(pids):
        time.sleep(KILL_EVERY_S)
        alive = [pid for pid in pids if not has_ended(pid)]
        if alive:
            killed.append(chosen.choice(alive))
            os.kill(killed[-1], signal.SIGKILL)

    pids, count = under_load(triton, name, SECONDS, kill)

    assert len(killed) > SECONDS / KILL_EVERY_S / 2
    assert count > 100
    assert len(pids) > len(killed) / 2
    wait_until(lambda: triton.report.instances(name)[1] >= len(killed), 30)


def test_a_killed_node_loses_no_request_and_its_actors_start_on_another_one(cluster, triton, name):
    spare = {"num_cpus": 1, "resources": {"spare": 1}, "object_store_memory": MEMORY}
    nodes = [cluster.add_node(**spare)]
    there = instances(1, retries=2, ray_actor_options={"resources": {"spare": 1}})
    bind_pid(triton, name, [*instances(2, retries=2), *there])

    def replace(_):
        time.sleep(3)
        if len(nodes) == 1:
            cluster.remove_node(nodes[0], allow_graceful=False)
            nodes.append(cluster.add_node(**spare))

    pids, count = under_load(triton, name, 20, replace)

    assert count > 100
    assert len(pids) >= 4
    assert triton.report.instances(name)[1] >= 1


def test_rebinding_under_load_loses_no_request_and_stops_the_old_actors(triton, name):
    bind_pid(triton, name, instances(2))

    def bind_again(_):
        bind_pid(triton, name, instances(2))

    pids, _ = under_load(triton, name, 8, bind_again)

    assert len(pids) >= 4
    wait_until(lambda: len([pid for pid in pids if not has_ended(pid)]) <= 2, 20)
