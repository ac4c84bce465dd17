"""Waiting requests: their order, timeouts and number."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from gates import Gate, gathers, is_pending, row
from serving import (
    HOST,
    Background,
    InferenceServerException,
    bind_floats,
    infer_json,
    json_floats,
    running_triton,
    statistics_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, TimeoutAction

TIMEOUT_US = 50_000
LONG_US = 60_000_000
TIMED_OUT = "Request timeout expired"
LATE_RESPONSES = pathlib.Path(__file__).with_name("late_responses.py")
POLICIES = {
    "size": {"default_queue_policy": QueuePolicy(max_queue_size=100)},
    "timeout": {"default_queue_policy": QueuePolicy(default_timeout_microseconds=LONG_US)},
    "priorities": {"priority_levels": 2, "default_priority_level": 1},
}


def one_by_one(**settings):
    """A configuration whose batches have one request, so that the order of the calls is that of the queue."""
    return ModelConfig(max_batch_size=1, batcher=DynamicBatcher(**settings))


class Queue:
    """A bound model whose callable is busy with a first request, and the requests that wait behind it."""

    def __init__(self, triton, client, name, config):
        self.gate = Gate()
        self._triton, self._client, self._name = triton, client, name
        bind_floats(triton, name, self.gate, config=config)
        self.requests = []
        self.add(0)
        assert self.gate.entered.wait(30)

    def add(self, value, **options):
        """Sends a request over gRPC, and returns once it waits."""

        def send():
            try:
                return self._client.infer(self._name, {"x": row(value)}, **options)["y"].item()
            except InferenceServerException as error:
                return error.message()

        self._send(send)

    def add_json(self, value, **parameters):
        """Sends a request as JSON, and returns once it waits."""
        self._send(lambda: infer_json(self._triton, self._name, [json_floats([value])], parameters=parameters))

    def _send(self, send):
        waiting = len(self.requests)
        self.requests.append(Background(send))
        wait_until(lambda: is_pending(self._triton, self._name, waiting))

    def wait_for_timeouts(self):
        """Waits until what has `TIMEOUT_US` has waited that long, were it queued a little later than it was counted."""
        deadline = time.monotonic() + 3 * TIMEOUT_US / 1e6
        wait_until(lambda: time.monotonic() > deadline)

    def finish(self):
        """Lets the callable continue, and returns the responses in the order in which the requests were sent."""
        self.gate.opened.set()
        return [request.finish().result for request in self.requests]

    @property
    def served(self):
        """What the callable saw, in order."""
        return [value for call in self.gate.batches for values in call for value in values]


def test_a_request_that_waited_longer_than_its_timeout_is_refused(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=TIMEOUT_US)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    queue.add(1)
    queue.wait_for_timeouts()

    responses = queue.finish()

    assert responses[0] == 0
    assert TIMED_OUT in responses[1]
    assert queue.served == [0], "it does not reach the callable"
    assert grpc_client.infer(name, {"x": row(2)})["y"].item() == 2, "the next one does"


def test_a_request_whose_turn_comes_in_time_is_served(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=LONG_US)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    queue.add(1)

    assert queue.finish() == [0, 1]


def test_a_request_that_waited_too_long_is_delayed_behind_those_that_did_not(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.DELAY, default_timeout_microseconds=LONG_US, allow_timeout_override=True)

    def served():
        queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
        queue.add(1, timeout=TIMEOUT_US)
        queue.wait_for_timeouts()
        queue.add(2)
        queue.add(3)
        assert queue.finish() == [0, 1, 2, 3]
        return queue.served

    assert gathers([0, 2, 3, 1], served)


@pytest.mark.parametrize("protocol", ["grpc", "json"])
def test_a_client_may_shorten_the_timeout_if_allowed(triton, grpc_client, name, protocol):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=LONG_US, allow_timeout_override=True)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    if protocol == "grpc":
        queue.add(1, timeout=TIMEOUT_US)
    else:
        queue.add_json(1, timeout=TIMEOUT_US)
    queue.wait_for_timeouts()
    queue.add(2)

    first, shortened, other = queue.finish()

    assert (first, other) == (0, 2)
    assert TIMED_OUT in str(shortened)
    assert queue.served == [0, 2]


def test_a_timeout_of_a_client_has_no_effect_unless_allowed(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=LONG_US)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    queue.add(1, timeout=TIMEOUT_US)
    queue.wait_for_timeouts()

    assert queue.finish() == [0, 1]


def test_a_client_cannot_lengthen_the_timeout(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=TIMEOUT_US, allow_timeout_override=True)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    queue.add(1, timeout=LONG_US)
    queue.wait_for_timeouts()

    assert TIMED_OUT in queue.finish()[1]


def test_a_timeout_without_a_queue_policy_has_no_effect(triton, grpc_client, name):
    queue = Queue(triton, grpc_client, name, one_by_one())
    queue.add(1, timeout=TIMEOUT_US)
    queue.wait_for_timeouts()

    assert queue.finish() == [0, 1]


def test_requests_with_queue_policies_do_not_wait_for_the_batchers_timer():
    async def coroutine(x):
        return {"y": x}

    late = {}
    with running_triton() as triton:
        for name, settings in POLICIES.items():
            bind_floats(triton, name, batch(lambda x: {"y": x}), config=ModelConfig(batcher=DynamicBatcher(**settings)))
        limited = ModelConfig(batcher=DynamicBatcher(**POLICIES["size"]))
        bind_floats(triton, "coroutine", batch(coroutine), config=limited)
        triton.run()
        for name in (*POLICIES, "coroutine"):
            command = [sys.executable, str(LATE_RESPONSES), HOST, str(triton.config.http_port), name]
            late[name] = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)

    assert max(late.values()) <= 2, f"some may have waited for the machine, but not {late}"


def test_refused_requests_count_as_failures(triton, grpc_client, name):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=TIMEOUT_US)
    queue = Queue(triton, grpc_client, name, one_by_one(default_queue_policy=policy))
    queue.add(1)
    queue.wait_for_timeouts()
    queue.finish()

    def counts():
        statistics = statistics_of(triton, name)["inference_stats"]
        return statistics["success"]["count"], statistics["fail"]["count"]

    wait_until(lambda: counts() == (1, 1))


def test_each_priority_has_its_own_policy(triton, grpc_client, name):
    reject = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=TIMEOUT_US)
    config = one_by_one(priority_levels=2, default_priority_level=2, priority_queue_policy={1: reject})
    queue = Queue(triton, grpc_client, name, config)
    queue.add(1, priority=1)
    queue.add(2, priority=2)
    queue.add(3)
    queue.wait_for_timeouts()

    first, urgent, *patient = queue.finish()

    assert (first, patient) == (0, [2, 3])
    assert TIMED_OUT in urgent


def test_a_full_queue_of_one_priority_leaves_the_others_open(triton, grpc_client, name):
    config = one_by_one(
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(max_queue_size=16),
        priority_queue_policy={1: QueuePolicy(max_queue_size=1)},
    )
    queue = Queue(triton, grpc_client, name, config)
    full = []
    # The server takes requests out of the queue before the callable is free, so the queue is full after a few.
    while not full:
        request = Background(lambda: grpc_client.infer(name, {"x": row(1)}, priority=1)["y"].item())
        pending = len(queue.requests)
        wait_until(lambda r=request, n=pending: not r.is_alive() or is_pending(triton, name, n))
        if request.is_alive():
            queue.requests.append(request)
        else:
            full.append(request)
        assert len(queue.requests) < 9
    queue.add(2, priority=2)

    assert "Exceeds maximum queue size" in str(full[0].error)
    assert queue.finish()[-1] == 2


class Two:
    """Two instances of a model: the first call waits, the others do not."""

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()

    def __call__(self, requests):
        if not self.entered.is_set():
            self.entered.set()
            assert self.gate.wait(30)
        return requests


@pytest.mark.parametrize("preserve", [True, False])
def test_with_preserved_order_responses_are_sent_in_the_order_of_requests(triton, grpc_client, name, preserve):
    infer = Two()
    bind_floats(triton, name, [infer] * 2, config=one_by_one(preserve_ordering=preserve))
    try:
        first = Background(lambda: grpc_client.infer(name, {"x": row(1)})["y"].item())
        assert infer.entered.wait(30)
        second = Background(lambda: grpc_client.infer(name, {"x": row(2)})["y"].item())
        wait_until(lambda: statistics_of(triton, name)["inference_stats"]["compute_infer"]["count"] == 1)

        if preserve:
            assert grpc_client.raw.is_server_ready()  # a response that had been sent would be here before this one
            assert second.is_alive()
        else:
            assert second.finish().result == 2
        assert first.is_alive()
    finally:
        infer.gate.set()
    assert [first.finish().result, second.finish().result] == [1, 2]


def test_with_preserved_order_an_error_does_not_delay_later_responses(triton, grpc_client, name):
    def infer(requests):
        return [ValueError("odd") if request["x"].item() % 2 else [request["x"]] for request in requests]

    bind_floats(triton, name, [infer] * 2, config=ModelConfig(batcher=DynamicBatcher(preserve_ordering=True)))

    requests = [Background(lambda n=n: grpc_client.infer(name, {"x": row(n)})["y"].item()) for n in range(20)]
    for number, request in enumerate(requests):
        request.finish()
        assert ("odd" in str(request.error)) if number % 2 else (request.result == number)


def test_with_preserved_order_each_request_gets_its_own_response(triton, grpc_client, name):
    def infer(requests):
        threading.Event().wait(0.001 * (requests[0]["x"].item() % 3))
        return [[np.sqrt(request["x"])] for request in requests]

    batcher = DynamicBatcher(preserve_ordering=True, max_queue_delay_microseconds=1000)
    bind_floats(triton, name, [infer] * 3, config=ModelConfig(max_batch_size=4, batcher=batcher))

    requests = [Background(lambda n=n: grpc_client.infer(name, {"x": row(n * n)})["y"].item()) for n in range(60)]
    assert [request.finish().result for request in requests] == list(range(60))
