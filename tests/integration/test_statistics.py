from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from serving import (
    NO_BATCHING,
    at_once,
    bind_floats,
    counted_statistics_of,
    held_model,
    infer_json,
    metrics_of,
    send_floats,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig

INFER_S = 0.05
SLACK_S = 0.1
PATIENT = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=200_000))


def busy(requests):
    """Takes a known time."""
    threading.Event().wait(INFER_S)
    return [[request["x"]] for request in requests]


def seconds(statistics, part):
    return statistics[part]["ns"] / 1e9


def test_the_time_in_the_callable_counts_as_compute_infer(triton, name):
    bind_floats(triton, name, busy, config=NO_BATCHING)

    start = time.monotonic()
    for _ in range(4):
        assert send_floats_of_one(triton, name) == [1]
    elapsed_s = time.monotonic() - start

    statistics = counted_statistics_of(triton, name, 4)["inference_stats"]
    assert {part: each["count"] for part, each in statistics.items() if not part.startswith("cache")} == {
        "success": 4,
        "fail": 0,
        "queue": 4,
        "compute_input": 4,
        "compute_infer": 4,
        "compute_output": 4,
    }
    assert 4 * INFER_S <= seconds(statistics, "compute_infer") <= elapsed_s
    assert seconds(statistics, "compute_infer") <= seconds(statistics, "success") <= elapsed_s
    for part in ("compute_input", "compute_output", "queue"):
        assert 0 < seconds(statistics, part) < SLACK_S


def send_floats_of_one(triton, name):
    status, response = infer_json(triton, name, [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}])
    assert status == 200, response
    return response["outputs"][0]["data"]


def test_the_parts_add_up_to_the_total(triton, http_client, name):
    bind_floats(triton, name, batch(lambda x: [x * 2]), config=ModelConfig(max_batch_size=1))

    for _ in range(20):
        http_client.infer(name, {"x": np.ones((1, 10_000), np.float32)})

    statistics = counted_statistics_of(triton, name, 20)["inference_stats"]
    parts = sum(seconds(statistics, part) for part in ("queue", "compute_input", "compute_infer", "compute_output"))
    whole = seconds(statistics, "success")
    assert 0.5 * whole <= parts <= 1.01 * whole
    assert all(statistics[part]["ns"] > 0 for part in ("compute_input", "compute_infer", "compute_output"))


def test_the_time_behind_another_request_counts_as_queue(triton, name):
    entered, gate = held_model(triton, name, config=NO_BATCHING)

    def send(number):
        if number == 0:
            return send_floats_of_one(triton, name)
        assert entered.wait(30)
        if number < 3:
            return send_floats_of_one(triton, name)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] >= 2)
        threading.Event().wait(INFER_S)
        return gate.set()

    start = time.monotonic()
    at_once(4, send)
    elapsed_s = time.monotonic() - start

    queued_s = seconds(counted_statistics_of(triton, name, 3)["inference_stats"], "queue")
    assert 2 * INFER_S <= queued_s <= 2 * elapsed_s + SLACK_S


def test_batches_count_as_executions_and_samples_as_inferences(triton, grpc_client, name):
    sizes = []

    @batch
    def infer(x):
        sizes.append(len(x))
        return [x]

    bind_floats(triton, name, infer, config=PATIENT)

    at_once(6, lambda number: grpc_client.infer(name, {"x": np.zeros((number % 2 + 1, 1), np.float32)}))

    statistics = counted_statistics_of(triton, name, 6)
    assert statistics["inference_count"] == sum(sizes) == 9
    assert statistics["execution_count"] == len(sizes) < 6
    assert sorted(each["batch_size"] for each in statistics["batch_stats"]) == sorted(set(sizes))
    for each in statistics["batch_stats"]:
        assert each["compute_infer"]["count"] == sizes.count(each["batch_size"])
        assert min(each[part]["ns"] for part in ("compute_input", "compute_infer", "compute_output")) > 0


def test_failures_are_counted_separately(triton, name):
    def infer(requests):
        if requests[0]["x"][0, 0] < 0:
            raise ValueError("negative")
        return [[request["x"]] for request in requests]

    bind_floats(triton, name, infer)

    for value in (1, -1, 2, -2, -3):
        send_floats(triton, name, [value])

    statistics = counted_statistics_of(triton, name, 5)["inference_stats"]
    assert statistics["success"]["count"] == 2
    assert statistics["fail"]["count"] == 3
    assert statistics["fail"]["ns"] > 0


def test_the_time_of_the_last_inference(triton, name):
    bind_floats(triton, name, lambda requests: requests)
    before_ms = time.time_ns() // 1_000_000

    send_floats(triton, name, [1])

    assert before_ms - 1 <= counted_statistics_of(triton, name, 1)["last_inference"] <= time.time_ns() // 1_000_000 + 1


def test_the_metrics_endpoint_reports_the_same(triton, name):
    def infer(requests):
        if requests[0]["x"][0, 0] < 0:
            raise ValueError("negative")
        return busy(requests)

    bind_floats(triton, name, infer)

    for value in (1, 2, -1):
        send_floats(triton, name, [value])

    durations = counted_statistics_of(triton, name, 3)["inference_stats"]
    metrics = wait_until(lambda: counted(triton, name, 3))
    assert metrics["nv_inference_request_success"] == 2
    assert metrics["nv_inference_request_failure"] == 1
    assert metrics["nv_inference_count"] == 2
    assert metrics["nv_inference_exec_count"] == 2
    assert metrics["nv_inference_pending_request_count"] == 0
    for part, metric in (
        ("queue", "nv_inference_queue_duration_us"),
        ("compute_input", "nv_inference_compute_input_duration_us"),
        ("compute_infer", "nv_inference_compute_infer_duration_us"),
        ("compute_output", "nv_inference_compute_output_duration_us"),
    ):
        assert metrics[metric] == pytest.approx(durations[part]["ns"] / 1000, abs=5)
    assert metrics["nv_inference_compute_infer_duration_us"] >= 2 * INFER_S * 1e6


def counted(triton, name, requests):
    metrics = metrics_of(triton, name)
    ended = metrics["nv_inference_request_success"] + metrics["nv_inference_request_failure"]
    return metrics if ended >= requests else None
