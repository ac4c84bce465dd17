"""The gateway's records of requests."""

from __future__ import annotations

import pytest

from pytriton.gateway.traffic import Traffic


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pytriton.gateway.traffic.time.monotonic", lambda: now[0])
    return now


def test_no_requests(clock):
    report = Traffic().report("Double")
    assert (report["requests"], report["requests_per_s"], report["latency_ms"]) == (0, 0, {})


def test_rates_and_quantiles_are_of_the_last_minute(clock):
    traffic = Traffic()
    traffic.record("Double", clock[0] - 9)
    clock[0] += 100
    for i in range(100):
        traffic.record("Double", clock[0] - i / 1000)
    report = traffic.report("Double")
    assert report["requests"] == 101
    assert report["requests_per_s"] == pytest.approx(100 / 60, abs=0.01)
    assert report["latency_ms"] == {"p50": 50, "p95": 95, "p99": 99}


def test_high_rates_are_computed_from_the_kept_requests(clock):
    traffic = Traffic()
    for _ in range(2000):
        clock[0] += 0.001
        traffic.record("Double", clock[0])
    assert traffic.report("Double")["requests_per_s"] == pytest.approx(1000, rel=0.01)


def test_long_messages_are_shortened(clock):
    traffic = Traffic()
    traffic.record("Double", clock[0], 500, "x" * 10_000)
    assert len(traffic.report("Double")["errors"][0]["message"]) == 500
