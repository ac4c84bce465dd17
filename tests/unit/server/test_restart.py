"""The policy of restarts: at once, then with growing pauses, up to a limit."""

from __future__ import annotations

import pytest

from pytriton.server import restart
from pytriton.server.gate import Gate, GateState, name_hash
from pytriton.server.restart import FAILED_STARTS, RestartPolicy


def test_the_first_restart_is_at_once():
    assert RestartPolicy().next_pause_s() == 0


def test_pauses_grow_with_each_failed_start_until_restarts_end():
    policy = RestartPolicy()
    pauses = [policy.next_pause_s() for _ in range(FAILED_STARTS)]

    assert pauses == sorted(pauses)
    assert pauses[1] > 0
    assert policy.next_pause_s() is None


def test_after_a_successful_start_the_next_restart_is_at_once():
    policy = RestartPolicy()
    for _ in range(50):
        assert policy.next_pause_s() == 0
        policy.note_ready()
    assert policy.restarts == 50


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_the_number_of_restarts_within_the_period_is_limited(limit, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(restart.time, "monotonic", lambda: now[0])
    policy = RestartPolicy(limit)
    for _ in range(limit):
        assert policy.next_pause_s() is not None
        policy.note_ready()
    assert policy.next_pause_s() is None

    now[0] += restart.PERIOD_S + 1
    assert (policy.next_pause_s() is None) == (limit == 0)


def test_the_states_of_a_gate_never_go_back():
    gate = Gate()
    assert gate.state is GateState.STARTING
    gate.drain()
    assert gate.state is GateState.STARTING, "it has never been ready"
    gate.open()
    assert gate.state is GateState.SERVING
    gate.drain()
    gate.open()
    assert gate.state is GateState.DRAINING
    gate.close()
    gate.open()
    gate.drain()
    assert gate.state is GateState.STOPPING


@pytest.mark.parametrize(("change", "after"), [("drain", GateState.DRAINING), ("close", GateState.STOPPING)])
def test_a_held_gate_is_not_open_and_shows_its_state_afterwards(change, after):
    gate = Gate()
    gate.open()
    with gate.held():
        assert gate.state is GateState.STARTING
        getattr(gate, change)()
        assert gate.state is (GateState.STOPPING if change == "close" else GateState.STARTING)
    assert gate.state is after

    gate = Gate()
    with gate.held():
        gate.open()
        assert gate.state is GateState.STARTING
    assert gate.state is GateState.SERVING


def test_the_hash_of_a_name_is_fnv_1a():
    assert name_hash("") == 0xCBF29CE484222325
    assert name_hash("a") == 0xAF63DC4C8601EC8C
    assert name_hash("foobar") == 0x85944171F73967E8
