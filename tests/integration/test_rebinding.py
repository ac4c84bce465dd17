"""Models that are rebound under load, and a server that is restarted repeatedly."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import os
import statistics
import threading
import time

import numpy as np
import psutil
import pytest
from footprint import MIB, TOLERANCE_MIB, Footprint, assert_same, settled
from serving import (
    NO_BATCHING,
    Background,
    Client,
    bind_floats,
    held_model,
    request_json,
    running_triton,
    send_floats,
    server_of,
    shared_memory,
    token_of,
    wait_until,
)

from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.triton import RemoteTriton

TIMES = 20


def constant(number):
    """An inference callable that returns a number."""

    return lambda requests: [[np.full_like(request["x"], number)] for request in requests]


class Load:
    """Clients of both protocols that send one request after the other, each in its own thread.

    Whoever binds by `bind` has each response checked: it comes from what was bound when the request was sent, or from
    what was being bound since then.

    Args:
        triton: The server.
        names: The models that the clients call, in turn; bound to `responding(0)`.
        batching: Whether the models have batches.
    """

    def __init__(self, triton, names, clients=6, batching=True):
        self.responses = []
        self.errors = []
        self._triton = triton
        self._bound = collections.Counter()
        self.being_bound = collections.Counter()
        self._leading = (1,) if batching else ()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(Client(protocol, triton), names), daemon=True)
            for _, protocol in zip(range(clients), itertools.cycle(["http", "grpc"]), strict=False)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, client, names):
        with contextlib.closing(client):
            for count, name in enumerate(itertools.cycle(names)):
                if self._stop.is_set():
                    return
                x = np.zeros((*self._leading, count % 5 + 1), np.float32)
                bound = self._bound[name]
                try:
                    y = client.infer(name, {"x": x})["y"]
                    assert y.shape == x.shape
                    (number,) = set(y.ravel().tolist())
                    assert bound <= number <= self.being_bound[name]
                    self.responses.append((name, number))
                except Exception as error:
                    self.errors.append(f"{name}: {error!r}")

    def bind(self, name, number, *, instances=1, **arguments):
        """Binds a model to `responding(number)`; numbers only grow."""
        self.being_bound[name] = number
        bind_floats(self._triton, name, [constant(number)] * instances, **arguments)
        self._bound[name] = number

    def wait_for_more(self, count=20):
        """Waits until that many more requests have responses."""
        wanted = len(self.responses) + count
        wait_until(lambda: len(self.responses) >= wanted or self.errors, 30)

    def stop(self):
        self._stop.set()

    def finish(self):
        """Stops the clients, checks that no request failed, and returns the numbers from each model."""
        self.stop()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads), "a request waits for ever"
        assert self.errors == []
        numbers = collections.defaultdict(set)
        for name, number in self.responses:
            numbers[name].add(number)
        return numbers


@contextlib.contextmanager
def load_on(*arguments, **options):
    """A load that is stopped in any case."""
    load = Load(*arguments, **options)
    try:
        yield load
    finally:
        load.stop()


CONFIGS = {
    "batching": ModelConfig(max_batch_size=8),
    "delay": ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=2_000)),
    "order": ModelConfig(max_batch_size=8, batcher=DynamicBatcher(preserve_ordering=True)),
    "no batching": NO_BATCHING,
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_rebinding_under_load_drops_no_request(triton, name, kind):
    bind_floats(triton, name, constant(0), config=CONFIGS[kind])
    with load_on(triton, [name], batching=kind != "no batching") as load:
        load.wait_for_more()
        for number in range(1, TIMES + 1):
            load.bind(name, number, config=CONFIGS[kind])
            load.wait_for_more()
        assert load.finish()[name] == set(range(TIMES + 1))


def test_rebinding_with_other_settings_under_load_drops_no_request(triton, name):
    bind_floats(triton, name, constant(0))
    with load_on(triton, [name]) as load:
        for number in range(1, TIMES + 1):
            batcher = DynamicBatcher(max_queue_delay_microseconds=500 * (number % 3))
            config = ModelConfig(max_batch_size=1 + number % 4, batcher=batcher)
            load.bind(name, number, instances=1 + number % 3, config=config)
            load.wait_for_more()
        assert TIMES in load.finish()[name]


def test_binding_other_models_under_load_drops_no_request(triton, name):
    again, quiet = f"{name}_again", f"{name}_quiet"
    for model in (again, quiet):
        bind_floats(triton, model, constant(0))
    with load_on(triton, [again, quiet]) as load:
        for number in range(1, TIMES + 1):
            load.bind(again, number)
            load.bind(f"{name}_new_{number}", number)
        load.wait_for_more()
        numbers_of = load.finish()
    assert numbers_of[quiet] == {0}
    assert TIMES in numbers_of[again]


def test_binding_versions_under_load_drops_no_request(triton, name):
    bind_floats(triton, name, constant(0), model_version=1)
    with load_on(triton, [name]) as load:
        for number in range(1, 9):
            load.bind(name, number, model_version=number + 1)  # of which the latest responds
            bind_floats(triton, name, constant(-1), model_version=1)
        load.wait_for_more()
        assert load.finish()[name] <= set(range(9))


def test_two_threads_that_bind_one_name_under_load_drop_no_request(triton, name):
    bind_floats(triton, name, constant(0))
    with load_on(triton, [name]) as load:
        load.being_bound[name] = TIMES

        def bind(numbers):
            for number in numbers:
                bind_floats(triton, name, constant(number))

        halves = [Background(lambda start=start: bind(range(start, TIMES, 2))) for start in (1, 2)]
        assert [half.finish(60).error for half in halves] == [None, None]
        load.finish()
    (last,) = send_floats(triton, name, [1])
    assert last in (TIMES - 2, TIMES - 1)


@pytest.mark.slow
def test_rebinding_under_load_leaves_nothing_behind():
    with running_triton() as triton:
        triton.run()
        bind_floats(triton, "again", constant(0))
        # One load for all: the client library leaves something behind in every thread.
        with load_on(triton, ["again"]) as load:

            def rebind(numbers):
                for number in numbers:
                    load.bind("again", number)
                    load.wait_for_more(10)

            rebind(range(1, TIMES))
            threads = psutil.Process().num_threads()
            before = Footprint(triton)
            rebind(range(TIMES, 2 * TIMES))

            assert_same(before, settled(triton, before))
            wait_until(lambda: psutil.Process().num_threads() <= threads)
            load.finish()


class OwnFootprint:
    """What this process holds while no server runs."""

    def __init__(self, home):
        gc.collect()
        process = psutil.Process(os.getpid())
        self.threads = sorted(thread.name for thread in threading.enumerate())
        self.kernel_threads = process.num_threads()
        self.files = process.num_fds()
        self.rss_mib = process.memory_info().rss / MIB
        self.children = len(process.children(recursive=True))
        self.shared_memory = shared_memory()
        self.workspaces = sorted(path.name for path in home.iterdir())

    def grown_to(self, later):
        """What there is more of, later."""
        grown = {
            name: (getattr(self, name), getattr(later, name))
            for name in ("kernel_threads", "files", "children")
            if getattr(later, name) > getattr(self, name)
        }
        for name in ("threads", "workspaces"):
            if getattr(later, name) != getattr(self, name):
                grown[name] = getattr(later, name)
        if later.shared_memory - self.shared_memory:
            grown["shared_memory"] = later.shared_memory - self.shared_memory
        if later.rss_mib - self.rss_mib > TOLERANCE_MIB:
            grown["rss_mib"] = (self.rss_mib, later.rss_mib)
        return grown


def assert_nothing_grows(home, once):
    """Does something a few times, and then twenty times more, which leaves nothing behind."""
    for number in range(3):
        once(number)
    before = OwnFootprint(home)
    for number in range(TIMES):
        once(number)
    with contextlib.suppress(AssertionError):  # reported below
        wait_until(lambda: not before.grown_to(OwnFootprint(home)))
    assert before.grown_to(OwnFootprint(home)) == {}


def run_and_stop(triton, number):
    """Runs a server, binds a model twice, and stops the server."""
    triton.run()
    try:
        for each in (number, number + 1):
            bind_floats(triton, "again", constant(each))
            assert send_floats(triton, "again", [1]) == [each]
    finally:
        assert triton.stop()


@pytest.mark.slow
def test_running_and_stopping_one_object_twenty_times_leaves_nothing_behind(own_home):
    with running_triton() as triton:
        bind_floats(triton, "kept", constant(-1))
        assert_nothing_grows(own_home, lambda number: run_and_stop(triton, number))

        assert not list(own_home.iterdir())
        triton.run()
        assert send_floats(triton, "kept", [1]) == [-1]


@pytest.mark.slow
def test_twenty_objects_leave_nothing_behind(own_home):
    assert_nothing_grows(own_home, lambda number: run_and_stop(running_triton(), number))

    assert not list(own_home.iterdir())


def test_run_and_stop_may_be_called_in_threads_that_end():
    triton = running_triton()
    bind_floats(triton, "kept", constant(7))
    for _ in range(3):
        thread = threading.Thread(target=triton.run)
        thread.start()
        thread.join(30)
        assert send_floats(triton, "kept", [1]) == [7]
        stopper = threading.Thread(target=triton.stop)
        stopper.start()
        stopper.join(30)
        assert not triton.is_alive()


def test_stop_waits_for_requests_of_a_replaced_callable():
    with running_triton() as triton:
        entered, gate = held_model(triton, "again")
        triton.run()
        request = Background(lambda: send_floats(triton, "again", [1]))
        assert entered.wait(30)
        bind_floats(triton, "again", constant(2))
        assert send_floats(triton, "again", [1]) == [2]

        stopping = Background(triton.stop)
        # Long enough for a stop that does not wait.
        deadline = time.monotonic() + 1.5
        wait_until(lambda: request.ended or time.monotonic() > deadline)
        gate.set()

        assert request.finish().result == [1]
        assert stopping.finish().result


def test_stop_of_a_remote_process_waits_for_requests_of_its_functions(triton, name):
    remote = RemoteTriton(url=f"localhost:{triton.config.http_port}", access_token=triton.get_access_token())
    remote.connect()
    entered, gate = held_model(remote, name)
    request = Background(lambda: send_floats(triton, name, [1]))
    assert entered.wait(30)

    stopping = Background(remote.stop)
    wait_until(lambda: request_json(triton, "GET", f"/v2/models/{name}/ready")[0] != 200)
    gate.set()

    assert request.finish().result == [1]
    assert stopping.finish().result


def test_a_model_is_not_unloaded_right_after_it_was_loaded(triton, name):
    bind_floats(triton, name, constant(1))
    server = server_of(triton).pid

    def control(verb):
        return request_json(triton, "POST", f"/v2/repository/models/{name}/{verb}", {}, token_of(triton))[0]

    pauses = []
    for _ in range(10):
        began = time.monotonic()
        assert control("load") == 200
        loaded = time.monotonic()  # or a while ago: responses may be delayed on a busy machine
        assert control("unload") == 200
        assert time.monotonic() - began > 0.1  # in any case
        pauses.append(time.monotonic() - loaded)
        wait_until(lambda: send_floats(triton, name, [1]) != [1])
    assert statistics.median(pauses) > 0.09  # or else the server may crash
    assert control("load") == 200
    assert send_floats(triton, name, [1]) == [1]
    assert server_of(triton).pid == server
