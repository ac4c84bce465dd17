"""Pools under load while replicas and nodes are killed, replaced and scaled; every response is checked."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
from actors import MEMORY
from serving import wait_until

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.ray import Autoscale, deploy

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("ray")]

WHOLE_S = 10.0
NODE = {"num_cpus": 2, "resources": {"chaos": 10}, "object_store_memory": MEMORY}
ON_CHAOS_NODES = {"resources": {"chaos": 1}}


def building(version=1, seconds=0.0):
    def build(triton):
        @batch
        def double(x):
            time.sleep(seconds)
            return {"y": x * 2, "version": np.full((len(x), 1), version)}

        outputs = [Tensor((-1,), np.float32, "y"), Tensor((1,), np.int64, "version")]
        triton.bind("Double", double, [Tensor((-1,), np.float32, "x")], outputs, config=ModelConfig(max_batch_size=8))

    return build


def deployed(name, build, replicas, **settings):
    return deploy(build, name=name, replicas=replicas, num_cpus=0, actor_options=ON_CHAOS_NODES, **settings)


@pytest.fixture
def nodes(cluster):
    """Three nodes, on which the pools of this module are."""
    nodes = [cluster.add_node(**NODE) for _ in range(3)]
    yield nodes
    for node in nodes:
        cluster.remove_node(node)


class Clients:
    """Clients of a pool that send random numbers, each over its own protocol, until they are stopped."""

    def __init__(self, pool, count=4):
        self.counts, self.errors, self.over, self.total = collections.Counter(), [], False, itertools.count()
        self._threads = [
            threading.Thread(target=self._send, args=(pool, ("http", "grpc")[number % 2])) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self.over = True
        for thread in self._threads:
            thread.join(60)

    def _send(self, pool, protocol):
        numbers = np.random.default_rng()
        with pool.client("Double", protocol=protocol) as client:
            while not self.over:
                x = numbers.random(16, dtype=np.float32)
                try:
                    result = client.infer_sample(x)
                except Exception as error:
                    self.errors.append(error)
                    continue
                if not np.array_equal(result["y"], x * 2):
                    self.errors.append(result)
                self.counts[result["version"].item()] += 1
                next(self.total)


@contextlib.contextmanager
def load(pool, count=4):
    clients = Clients(pool, count)
    try:
        yield clients
    finally:
        clients.stop()
    assert clients.errors == []
    print(f"{next(clients.total)} requests, none of which failed")


def ready(pool):
    return [replica for replica in pool.replicas() if replica.is_ready]


def test_killed_actors_are_replaced_within_ten_seconds(nodes):
    pool = deployed("killed", building(), 3)
    with load(pool):
        for _ in range(8):
            victim = random.choice(pool.replicas())
            os.kill(victim.pid, signal.SIGKILL)
            killed = time.monotonic()
            wait_until(lambda victim=victim: len(ready(pool)) == 3 and is_removed(pool, victim), 60.0)
            assert time.monotonic() - killed < WHOLE_S
    pool.shutdown()


def is_removed(pool, victim):
    return victim.id not in {replica.id for replica in pool.replicas()}


def test_a_node_is_killed_every_ten_seconds_for_two_minutes(nodes, cluster):
    pool = deployed("nodes", building(), 3)
    with load(pool):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(wait=False, **NODE))
            time.sleep(10)
        wait_until(lambda: len(ready(pool)) == 3, 30.0)
    pool.shutdown()


def test_updating_the_function_or_the_number_of_replicas_loses_no_request(nodes):
    pool = deployed("updates", building(1), 3)
    with load(pool) as clients:
        for version, replicas in ((2, 3), (2, 1), (3, 1), (3, 2), (4, 2)):
            deployed("updates", building(version), replicas)
            clients.counts.clear()
            wait_until(lambda: clients.counts.total() > 500, 30.0)
            assert set(clients.counts) == {version}
    pool.shutdown()


def test_a_node_is_drained_without_a_lost_request(nodes, cluster):
    pool = deployed("drained", building(), 2)
    with load(pool) as clients:
        cluster.remove_node(nodes.pop(), allow_graceful=True)
        wait_until(lambda: len(ready(pool)) == 2 and clients.counts.total() > 2000, 60.0)
    pool.shutdown()


def test_a_pool_grows_within_fifteen_seconds_under_load_and_shrinks_afterwards(nodes):
    autoscale = Autoscale(1, 3, queue_ms=50, downscale_delay_s=5)
    pool = deployed("scaled", building(seconds=0.05), None, autoscale=autoscale)
    assert len(ready(pool)) == 1
    with load(pool, 48):
        start = time.monotonic()
        wait_until(lambda: len(ready(pool)) == 3, 60.0)
        grown_s = time.monotonic() - start
    wait_until(lambda: len(ready(pool)) == 1, 90.0)
    print(f"three replicas after {grown_s:.1f} s")
    assert grown_s < 15.0
    pool.shutdown()
