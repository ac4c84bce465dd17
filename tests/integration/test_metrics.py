"""The built-in metrics of models, in one scrape of Triton's own endpoint."""

from __future__ import annotations

import asyncio
import re
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from processes import process_of
from prometheus_client.parser import text_string_to_metric_families
from serving import (
    Background,
    Script,
    at_once,
    bind_floats,
    client_of,
    held_model,
    needs_bundled_server,
    running_triton,
    samples_of,
    scrape,
    send_floats,
    wait_until,
)
from streaming import bind_stream, responses, stream_to

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PHASES = ("queue", "worker_wait", "python", "request")
ANSWER_S = 0.03
ONE_BY_ONE = ModelConfig(max_batch_size=1)


def slow(requests):
    threading.Event().wait(ANSWER_S)
    return [{"y": request["x"]} for request in requests]


def value_of(triton, metric, model, **labels):
    """A metric of a model; None if it has none."""
    return samples_of(triton, f"pytriton_{metric}", model=model, version="1", **labels).get(())


def wait_for(triton, metric, model, value, **labels):
    wait_until(
        lambda: value_of(triton, metric, model, **labels) == value,
        what=f"{metric} of {value} (it is {value_of(triton, metric, model, **labels)})",
    )


def test_each_phase_has_a_histogram_of_all_requests(triton, name):
    bind_floats(triton, name, slow, config=ONE_BY_ONE)
    for _ in range(3):
        assert send_floats(triton, name, [1]) == [1]
    wait_for(triton, "request_duration_seconds_count", name, 3)
    sums = {phase: value_of(triton, f"{phase}_duration_seconds_sum", name) for phase in PHASES}
    assert 3 * ANSWER_S <= sums["python"] <= sums["request"] < 3
    assert sums["queue"] + sums["worker_wait"] + sums["python"] <= sums["request"] * 1.001
    for phase in PHASES:
        buckets = samples_of(triton, f"pytriton_{phase}_duration_seconds_bucket", model=name, version="1")
        counts = [count for _, count in sorted((float(bound), count) for (bound,), count in buckets.items())]
        assert counts == sorted(counts), phase
        assert counts[-1] == value_of(triton, f"{phase}_duration_seconds_count", name) == 3
    assert value_of(triton, "python_duration_seconds_bucket", name, le="0.025") == 0
    assert value_of(triton, "python_duration_seconds_bucket", name, le="10") == 3


def test_a_request_that_waits_for_another_is_in_the_queue(triton, name):
    entered, gate = held_model(triton, name, config=ONE_BY_ONE)
    first = Background(lambda: send_floats(triton, name, [1]))
    assert entered.wait(10)
    second = Background(lambda: send_floats(triton, name, [1]))
    wait_until(lambda: samples_of(triton, "nv_inference_pending_request_count", model=name).get(("1",)) == 1)
    wait_for(triton, "requests_in_flight", name, 1)
    gate.set()
    first.finish()
    second.finish()
    wait_for(triton, "queue_duration_seconds_count", name, 2)
    assert value_of(triton, "worker_wait_duration_seconds_sum", name) < value_of(
        triton, "queue_duration_seconds_sum", name
    )


def test_batches_are_measured_in_samples(triton, name):
    config = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=200_000))
    bind_floats(triton, name, batch(lambda x: [x]), config=config)
    at_once(4, lambda number: send_floats(triton, name, [number]))
    wait_for(triton, "batch_size_sum", name, 4)
    assert value_of(triton, "batch_size_count", name) < 4


def test_sums_of_values_that_share_a_bucket_are_exact(triton, name):
    bind_floats(triton, name, batch(lambda x: [x]), config=ModelConfig(max_batch_size=4))
    sizes = [3, 4, 4] * 20
    with client_of(triton, "http") as client:
        for size in sizes:
            client.infer(name, {"x": np.zeros((size, 1), np.float32)})

    wait_for(triton, "batch_size_count", name, len(sizes))
    assert value_of(triton, "batch_size_sum", name) == sum(sizes)


def test_running_coroutines_count_as_in_flight(triton, name):
    gate = asyncio.Event()
    loops = []

    async def wait(requests):
        loops.append(asyncio.get_running_loop())
        await gate.wait()
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, wait, config=ModelConfig(max_batch_size=1, max_in_flight=16))
    requests = [Background(lambda: send_floats(triton, name, [1])) for _ in range(16)]
    wait_for(triton, "requests_in_flight", name, 16)
    loops[0].call_soon_threadsafe(gate.set)
    assert [request.finish().result for request in requests] == [[1]] * 16
    wait_for(triton, "requests_in_flight", name, 0)


def test_open_and_cancelled_streams_are_counted(triton, name):
    async def count(requests):
        for number in range(10_000):
            yield responses(requests, number)
            await asyncio.sleep(0.01)

    bind_stream(triton, name, count)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        stream.reply()
        wait_for(triton, "streams_open", name, 1)
        stream.cancel()
    wait_for(triton, "streams_open", name, 0)
    wait_for(triton, "cancelled_requests_total", name, 1, reason="client")
    assert value_of(triton, "cancelled_requests_total", name, reason="timeout") == 0


def test_a_model_without_streams_has_no_metrics_of_streams(triton, name):
    bind_floats(triton, name, slow)
    wait_for(triton, "requests_in_flight", name, 0)
    assert value_of(triton, "streams_open", name) is None


def test_requests_whose_timeout_passes_are_cancelled(triton, name):
    def hold(requests):
        wait_until(requests[0].is_cancelled)
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, hold, config=ONE_BY_ONE)
    with client_of(triton, "http") as client:
        client.infer(name, {"x": np.ones((1, 1), np.float32)}, timeout=1000)
    wait_for(triton, "cancelled_requests_total", name, 1, reason="timeout")


class OwnError(Exception):
    pass


def fail(requests):
    number = int(requests[0]["x"].flat[0])
    if number == 0:
        raise OwnError("no")
    if number == 1:
        raise PyTritonInvalidRequestError("not this one")
    raise type(f"Error{number}", (Exception,), {})


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_errors_are_counted_by_class_and_the_classes_are_bounded(triton, name, kind):
    async def fail_in_loop(requests):
        fail(requests)

    bind_floats(triton, name, fail if kind == "function" else fail_in_loop, config=ONE_BY_ONE)
    for number in (0, 0, 1):
        assert isinstance(send_floats(triton, name, [number]), str)
    wait_for(triton, "callable_errors_total", name, 2, error="OwnError")
    assert value_of(triton, "callable_errors_total", name, error="PyTritonInvalidRequestError") == 1
    for number in range(2, 42):
        send_floats(triton, name, [number])
    errors = samples_of(triton, "pytriton_callable_errors_total", model=name, version="1")
    assert len(errors) == 33
    assert errors["other",] == 10
    assert sum(errors.values()) == 43


def test_the_reported_shared_memory_is_that_of_the_requests(triton, name):
    bind_floats(triton, name, batch(lambda x: [x.copy()]), config=ONE_BY_ONE)
    wait_until(lambda: value_of(triton, "shared_memory_bytes", name))
    before = value_of(triton, "shared_memory_bytes", name)
    with client_of(triton, "grpc") as client:
        client.infer(name, {"x": np.ones((1, 1_000_000), np.float32)})
    wait_until(lambda: value_of(triton, "shared_memory_bytes", name) > before + 2 * 4_000_000)


def make_double():
    return batch(lambda x: [2 * x])


def test_instances_in_processes_are_measured_too(triton, name):
    bind_floats(triton, name, [ProcessInstance(make_double)] * 2, config=ONE_BY_ONE)
    assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(8)]
    wait_for(triton, "request_duration_seconds_count", name, 8)
    assert value_of(triton, "python_duration_seconds_count", name) == 8
    process_of(name).kill()

    def is_counted():
        at_once(2, lambda number: send_floats(triton, name, [number]))  # the instance learns of it with a request
        return sum(samples_of(triton, "pytriton_worker_restarts_total", model=name).values()) == 1

    wait_until(is_counted)


def test_the_metrics_of_a_model_that_is_replaced_continue(triton, name):
    for round_ in range(1, 4):
        bind_floats(triton, name, batch(lambda x: [x]))
        send_floats(triton, name, [round_])
        wait_for(triton, "request_duration_seconds_count", name, round_)


def test_unbinding_a_model_resets_its_metrics_and_leaves_nothing_behind(triton, name):
    for round_ in range(5):
        bind_floats(triton, name, batch(lambda x: [x]))
        send_floats(triton, name, [round_])
        wait_for(triton, "request_duration_seconds_count", name, 1)
        triton.unbind(name)
        wait_until(lambda: f'pytriton_requests_in_flight{{model="{name}"' not in scrape(triton))
    assert not [line for line in scrape(triton).splitlines() if name in line and "pytriton_" in line]


def test_prometheus_can_parse_the_metrics(triton, name):
    bind_floats(triton, name, slow)
    send_floats(triton, name, [1])
    wait_for(triton, "request_duration_seconds_count", name, 1)
    families = {family.name: family for family in text_string_to_metric_families(scrape(triton))}
    ours = {key: family.type for key, family in families.items() if key.startswith("pytriton_")}
    assert ours["pytriton_request_duration_seconds"] == "histogram"
    assert ours["pytriton_requests_in_flight"] == "gauge"
    assert ours["pytriton_cancelled_requests"] == "counter"
    for family in families.values():
        if family.name.startswith("pytriton_"):
            assert re.fullmatch(r"[A-Z].*[^.]", family.documentation), family.name
    samples = [sample for family in families.values() for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)


@needs_bundled_server
def test_the_model_of_another_process_is_measured_by_the_server(triton, tmp_path, name):
    with Script(tmp_path, REMOTE, f"localhost:{triton.config.http_port}", triton.get_access_token(), name) as script:
        assert script.line() == "ready", script.stderr
        assert send_floats(triton, name, [2]) == [4]
        wait_for(triton, "request_duration_seconds_count", name, 1)
        wait_until(lambda: samples_of(triton, f"{name}_of_a_process_total") == {(): 1})


REMOTE = """
import sys

import numpy as np

from pytriton.decorators import batch
from pytriton.metrics import Counter
from pytriton.model_config import Tensor
from pytriton.triton import RemoteTriton

CALLS = Counter(f"{sys.argv[3]}_of_a_process", "Calls")

@batch
def double(x):
    CALLS.inc()
    return [x * 2]

with RemoteTriton(url=sys.argv[1], access_token=sys.argv[2]) as triton:
    triton.bind(sys.argv[3], double, inputs=[Tensor((-1,), np.float32, "x")], outputs=[Tensor((-1,), np.float32, "y")])
    triton.connect()
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_without_the_guard_the_queue_time_is_unknown(name, monkeypatch):
    monkeypatch.setenv("PYTRITON_GUARD", "0")
    with running_triton() as triton:
        bind_floats(triton, name, slow)
        triton.run()
        send_floats(triton, name, [1])
        wait_for(triton, "request_duration_seconds_count", name, 1)
        assert "pytriton_queue_duration_seconds" not in scrape(triton)
