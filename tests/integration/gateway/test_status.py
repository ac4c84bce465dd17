"""The live page and its figures."""

from __future__ import annotations

import pytest
from gateways import gateway_of

from pytriton.gateway import create_key


@pytest.fixture
def fresh(served):
    with gateway_of(served) as gateway:
        yield gateway


def of_model(gateway, name):
    return next(model for model in gateway.get("/status").json()["models"] if model["name"] == name)


def test_figures(fresh):
    for _ in range(20):
        assert fresh.post("Double", {"x": [1]}).status == 200
    found = of_model(fresh, "Double")
    assert (found["requests"], found["failed"], found["errors"]) == (20, 0, [])
    assert 0 < found["requests_per_s"] <= 20
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p95"] <= found["latency_ms"]["p99"]
    assert found["batch_sizes"]["1"] >= 20
    assert found["queue_ms"] >= 0
    assert (found["instances"], found["restarts"], found["versions"]) == (1, 0, [1])
    assert found["description"].startswith("Doubles numbers.")


def test_errors(fresh):
    for _ in range(7):
        fresh.post("Fail", {"x": [1]})
    fresh.post("Fail", {"x": "one"})
    found = of_model(fresh, "Fail")
    assert found["failed"] == 8
    assert [error["status"] for error in found["errors"]] == [422, 500, 500, 500, 500]
    assert "no such luck" in found["errors"][1]["message"]


def test_errors_within_streams(fresh):
    assert fresh.post("Count", {"n": 101}).status == 200
    found = of_model(fresh, "Count")
    assert (found["requests"], found["failed"], found["errors"][0]["status"]) == (1, 1, 500)
    assert "that is a hundred" in found["errors"][0]["message"]


def test_unknown_model_names_are_not_recorded(fresh):
    fresh.post("Nobody", {})
    assert "Nobody" not in fresh.get("/status").body.decode()


def test_the_server(fresh, served):
    assert fresh.get("/status").json()["server"] == {"version": served.report.version, "restarts": 0}


def test_the_status_depends_on_the_key(served, tmp_path):
    path = tmp_path / "keys.json"
    key = create_key(path, "alice", models=["Double"])
    with gateway_of(served, api_keys=path) as gateway:
        assert gateway.get("/").status == 200
        assert gateway.get("/status").status == 401
        status = gateway.get("/status", authorization=f"Bearer {key}").json()
        assert [model["name"] for model in status["models"]] == ["Double"]
