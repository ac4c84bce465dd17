"""The number of replicas that a pool should have under its current load."""

import pytest

from pytriton.exceptions import PyTritonBadParameterError

pytest.importorskip("ray")

from pytriton.ray import Autoscale
from pytriton.ray.pools.autoscale import ScalingPolicy
from pytriton.ray.pools.load import BUSY, PENDING, QUEUE_MS

POLICY = ScalingPolicy(queue_ms=50, max_pending=None, max_busy=0.7)


def load(*, queue_ms=(), pending=(), busy=()):
    measures = {QUEUE_MS: queue_ms, PENDING: pending, BUSY: busy}
    return {name: dict(enumerate(values)) for name, values in measures.items()}


@pytest.mark.parametrize(
    ("queues", "replicas"),
    [
        ([51.0], 2),
        ([100.0], 2),
        ([130.0], 3),
        ([10_000.0], 3),  # at most three times as many at once
        ([60.0, 60.0], 3),
        ([100.0, 0.0], 2),  # the mean counts
        ([200.0, 100.0], 6),
    ],
)
def test_the_number_of_replicas_grows_with_the_queue(queues, replicas):
    busy = [1.0] * len(queues)
    assert POLICY.replicas(load(queue_ms=queues, busy=busy), len(queues)) == replicas


def test_starting_replicas_count():
    assert POLICY.replicas(load(queue_ms=[100.0], busy=[1.0]), 3) == 3


def test_without_a_measurement_the_number_is_kept():
    assert POLICY.replicas({}, 4) == 4
    assert POLICY.replicas(load(), 4) == 4


def test_one_replica_is_removed_while_the_others_can_do_its_work():
    assert POLICY.replicas(load(queue_ms=[0.0, 0.0, 0.0], busy=[0.4, 0.4, 0.4]), 3) == 2
    assert POLICY.replicas(load(queue_ms=[0.0, 0.0, 0.0], busy=[0.5, 0.5, 0.5]), 3) == 3
    assert POLICY.replicas(load(queue_ms=[0.0], busy=[0.0]), 1) == 1


def test_pending_requests_count_if_a_limit_is_given():
    policy = ScalingPolicy(queue_ms=50, max_pending=10, max_busy=0.7)
    assert policy.replicas(load(queue_ms=[0.0], pending=[25.0], busy=[0.1]), 1) == 3
    assert policy.replicas(load(queue_ms=[0.0, 0.0], pending=[8.0, 8.0], busy=[0.1, 0.1]), 2) == 2
    assert policy.replicas(load(queue_ms=[0.0, 0.0], pending=[4.0, 4.0], busy=[0.1, 0.1]), 2) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_replicas": 0, "max_replicas": 2},
        {"min_replicas": 3, "max_replicas": 2},
        {"min_replicas": 1, "max_replicas": True},
        {"min_replicas": 1, "max_replicas": 2, "queue_ms": 0},
        {"min_replicas": 1, "max_replicas": 2, "queue_ms": float("nan")},
        {"min_replicas": 1, "max_replicas": 2, "max_busy": "0.5"},
        {"min_replicas": 1, "max_replicas": 2, "max_pending": -1},
        {"min_replicas": 1, "max_replicas": 2, "downscale_delay_s": -1},
    ],
)
def test_invalid_settings_are_refused(arguments):
    with pytest.raises(PyTritonBadParameterError, match="Autoscale: "):
        Autoscale(**arguments)


def test_ray_serve_accepts_the_settings_and_finds_the_policy():
    from ray.serve.config import AutoscalingConfig

    config = AutoscalingConfig(**Autoscale(1, 4, queue_ms=20, max_pending=8).settings(replicas=2))
    policy = config.policy.get_policy()(**config.policy.policy_kwargs)
    assert (config.min_replicas, config.initial_replicas, config.max_replicas) == (1, 2, 4)
    assert policy.replicas(load(queue_ms=[40.0], pending=[1.0], busy=[1.0]), 1) == 2
