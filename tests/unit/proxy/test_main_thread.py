"""A worker whose callable runs in one thread, however many instances are connected."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from wiring import TIMEOUT_S, Instance, wait_until

from pytriton.proxy.context import MODEL
from pytriton.proxy.worker.threads import MainThread
from pytriton.proxy.worker.worker import Worker

X = np.ones((1, 3), np.float32)
MANY = 200
MAX_CPU_S = 3.0


@pytest.fixture(scope="module")
def main_thread():
    main_thread = MainThread()
    threading.Thread(target=main_thread.run, daemon=True).start()
    return main_thread


class Served:
    """A worker in the main thread, and the threads and models that its callable has seen."""

    def __init__(self, wire, main_thread, has_doorbell):
        self._wire, self._has_doorbell = wire, has_doorbell
        self.seen = set()
        self.instances = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_in_call = threading.Event()
        self.worker = Worker(self.infer, wire().signature, main_thread=main_thread)

    def infer(self, requests):
        self.is_in_call.set()
        assert self.gate.wait(TIMEOUT_S)
        self.seen.add((threading.get_ident(), MODEL.get().name))
        return [[request["x"] * 2, request["x"]] for request in requests]

    def connect(self):
        self.instances.append(Instance(self._wire(), self.worker, self._has_doorbell))
        return self.instances[-1]

    def close(self):
        for instance in self.instances:
            leave(instance)
        self.worker.close(TIMEOUT_S)


def leave(instance):
    instance.channel.close()
    if instance.doorbell is not None:
        instance.doorbell.notify()


@pytest.fixture
def served(wire, main_thread):
    served = Served(wire, main_thread, has_doorbell=True)
    yield served
    served.close()


def assert_serves(instance, value=1):
    x = np.full((1, 2), value, np.float32)
    _, outputs = instance.infer({"x": x})
    assert outputs["y"][0].tolist() == (x * 2).tolist()


def test_a_new_instance_is_served_while_the_old_one_stays(served):
    old = served.connect()
    assert_serves(old)

    new = served.connect()
    for value in range(3):
        assert_serves(new, value)
        assert_serves(old, value)

    ((thread, model),) = served.seen
    assert thread != threading.get_ident()
    assert model == served.worker.spec.name


def test_without_a_doorbell_both_are_served_too(wire, main_thread):
    served = Served(wire, main_thread, has_doorbell=False)
    for instance in (served.connect(), served.connect()):
        assert_serves(instance)
    assert len(served.seen) == 1
    served.close()


def test_an_unused_instance_makes_room_too(served):
    instances = [served.connect() for _ in range(5)]

    for instance in (*instances, *reversed(instances)):
        assert_serves(instance)
    assert len(served.seen) == 1


def test_a_new_instance_waits_for_the_call_of_the_old_one(served):
    old = served.connect()
    served.gate.clear()
    old.notify({"x": X})
    assert served.is_in_call.wait(TIMEOUT_S)

    new = served.connect()
    new.notify({"x": X})
    served.gate.set()

    for instance in (old, new):
        assert instance.response([1])[1]["y"][0].tolist() == (X * 2).tolist()
    assert len(served.seen) == 1


def test_other_work_runs_between_the_batches_of_an_instance(served, main_thread):
    assert_serves(served.connect())

    ((thread, _),) = served.seen
    assert main_thread.call(threading.get_ident, TIMEOUT_S) == thread


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]], ids=str)
def test_instances_disconnect_in_any_order(served, order):
    instances = [served.connect() for _ in order]

    for count, leaving in enumerate(order, start=1):
        leave(instances[leaving])
        left = len(order) - count
        wait_until(lambda left=left: served.worker.connections == left)
        for staying in order[count:]:
            assert_serves(instances[staying], staying)
    assert_serves(served.connect())


def test_no_batch_is_lost_while_instances_connect_and_disconnect(served):
    chance = random.Random(1)
    instances = [served.connect()]
    before_s = time.process_time()
    for value in range(MANY):
        if chance.random() < 0.2:
            instances.append(served.connect())
        if len(instances) > 1 and chance.random() < 0.2:
            leave(instances.pop(chance.randrange(len(instances))))
        some = chance.sample(instances, chance.randint(1, len(instances)))
        for instance in some:
            instance.notify({"x": np.full((1, 2), value, np.float32)})
        for instance in some:
            assert instance.response([1])[1]["y"][0].tolist() == [[2 * value] * 2]
    assert len(served.seen) == 1
    assert time.process_time() - before_s < MAX_CPU_S, "a thread does not sleep while it waits"
