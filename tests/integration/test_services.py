"""Services of the server for workers besides inference: log, metrics, model control."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.request

import numpy as np
import pytest
from serving import (
    HOST,
    NO_BATCHING,
    bind_floats,
    request_json,
    running_triton,
    send_floats,
    token_of,
    wait_until,
)

from pytriton.exceptions import PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.proxy.services.client import current_client
from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.wire.service import SEQUENCE_END, SEQUENCE_START, LogLevel, MetricKind


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "server.log"


@pytest.fixture(scope="module")
def triton(log_file):
    with running_triton(log_file=log_file) as triton:
        bind_floats(triton, "same", lambda requests: requests)
        triton.run()
        yield triton


def called(triton, name, function):
    """Calls ``function(services)`` within a bound model, and returns what it returns or raises what it raises."""
    kept = []

    def call(requests):
        try:
            kept.append((function(current_client()), None))
        except BaseException as error:
            kept.append((None, error))
        return requests

    bind_floats(triton, name, call)
    assert send_floats(triton, name, [0]) == [0]
    result, error = kept[0]
    if error is not None:
        raise error
    return result


def samples(triton, family):
    """The lines of a metric family on the server's endpoint."""
    with urllib.request.urlopen(f"http://{HOST}:{triton.config.metrics_port}/metrics", timeout=10) as response:
        return [line for line in response.read().decode().splitlines() if line.startswith(family)]


def unload(triton, model):
    request_json(triton, "POST", f"/v2/repository/models/{model}/unload", {}, token_of(triton))


def test_lines_are_written_to_the_servers_log(triton, name, log_file):
    def log(services):
        services.log(LogLevel.INFO, f"{name}: all is well", "model.py", 12)
        services.log(LogLevel.WARNING, f"{name}: now it ïs not", "model.py", 13)
        services.log(LogLevel.ERROR, f"{name}: it is over", "model.py", 14)

    called(triton, name, log)
    wait_until(lambda: f"{name}: it is over" in log_file.read_text())
    lines = [line for line in log_file.read_text().splitlines() if f"{name}: " in line]
    assert [line[0] for line in lines] == ["I", "W", "E"]
    assert "model.py:12]" in lines[0]
    assert "now it ïs not" in lines[1]


def test_a_counter_counts(triton, name):
    def count(services):
        metric = services.metric(services.metric_family(name, "Of a test.", MetricKind.COUNTER), {"color": "red"})
        services.increment(metric, 2)
        services.increment(metric, 0.5)
        return services.value(metric)

    assert called(triton, name, count) == 2.5
    assert samples(triton, name) == [f'{name}{{color="red"}} 2.5']


def test_a_gauge_goes_up_and_down(triton, name):
    def measure(services):
        metric = services.metric(services.metric_family(name, "Of a test.", MetricKind.GAUGE), {})
        services.set(metric, 7)
        services.increment(metric, -3)
        return services.value(metric)

    assert called(triton, name, measure) == 4
    assert samples(triton, name) == [f"{name} 4"]


def test_a_histogram_has_buckets(triton, name):
    def observe(services):
        family = services.metric_family(name, "Of a test.", MetricKind.HISTOGRAM)
        metric = services.metric(family, {"a": "b"}, [1, 10])
        for value in (0.5, 5, 50):
            services.observe(metric, value)

    called(triton, name, observe)
    assert samples(triton, name) == [
        f'{name}_count{{a="b"}} 3',
        f'{name}_sum{{a="b"}} 55.5',
        f'{name}_bucket{{a="b",le="1"}} 1',
        f'{name}_bucket{{a="b",le="10"}} 2',
        f'{name}_bucket{{a="b",le="+Inf"}} 3',
    ]


@pytest.mark.parametrize(
    ("kind", "act", "message"),
    [
        (MetricKind.COUNTER, lambda services, metric: services.increment(metric, -1), "monotonically"),
        (MetricKind.COUNTER, lambda services, metric: services.set(metric, 1), "does not support Set"),
        (MetricKind.GAUGE, lambda services, metric: services.observe(metric, 1), "only histograms can observe values"),
        (MetricKind.HISTOGRAM, lambda services, metric: services.value(metric), "does not support Value"),
        (MetricKind.GAUGE, lambda services, metric: services.value(metric + 99), "the metric was deleted"),
        (MetricKind.GAUGE, lambda services, metric: services.metric(99, {}), "the metric family was deleted"),
    ],
    ids=["shrink", "set", "observe", "value", "unknown", "unknown family"],
)
def test_unsupported_operations_of_a_metric_are_errors(triton, name, kind, act, message):
    def wrong(services):
        family = services.metric_family(name, "Of a test.", kind)
        act(services, services.metric(family, {}, [1.0] if kind is MetricKind.HISTOGRAM else None))

    with pytest.raises(PyTritonInferenceError, match=message):
        called(triton, name.replace("[", "_"), wrong)


def test_a_family_has_one_kind(triton, name):
    def twice(services):
        services.metric_family(name, "Of a test.", MetricKind.COUNTER)
        services.metric_family(name, "Of a test.", MetricKind.GAUGE)

    with pytest.raises(PyTritonInferenceError, match=f"there is a metric family '{name}' of another kind"):
        called(triton, name, twice)


def test_shared_metrics_disappear_with_the_last_of_their_models(triton, name):
    def count(services):
        metric = services.metric(services.metric_family(name, "Of a test.", MetricKind.COUNTER), {"color": "red"})
        services.increment(metric, 1)

    called(triton, f"{name}_a", count)
    called(triton, f"{name}_b", count)
    assert samples(triton, name + "{") == [f'{name}{{color="red"}} 2']
    unload(triton, f"{name}_a")
    assert send_floats(triton, "same", [1]) == [1]
    assert samples(triton, name + "{") == [f'{name}{{color="red"}} 2']
    unload(triton, f"{name}_b")
    wait_until(lambda: samples(triton, name + "{") == [])


def test_a_released_metric_disappears(triton, name):
    def make(services):
        family = services.metric_family(name, "Of a test.", MetricKind.GAUGE)
        metric = services.metric(family, {})
        services.set(metric, 1)
        before = samples(triton, name)
        services.delete_metric(metric)
        services.delete_metric_family(family)
        return before

    assert called(triton, name, make) == [f"{name} 1"]
    wait_until(lambda: samples(triton, name) == [])


def test_eight_threads_count_at_once(triton, name):
    def count(services):
        metric = services.metric(services.metric_family(name, "Of a test.", MetricKind.COUNTER), {})

        def work():
            for _ in range(100):
                services.increment(metric, 1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return services.value(metric)

    assert called(triton, name, count) == 800


def test_a_model_is_unloaded_and_reloaded(triton, name):
    bind_floats(triton, f"{name}_other", lambda requests: requests)
    other = f"{name}_other"

    def turn(services):
        seen = [services.is_model_ready(other), services.is_model_ready(other, 1), services.is_model_ready(other, 2)]
        services.unload_model(other)
        wait_until(lambda: not services.is_model_ready(other))
        services.load_model(other)
        return [*seen, services.is_model_ready(other)]

    assert called(triton, name, turn) == [True, True, False, True]
    assert send_floats(triton, other, [3]) == [3]


def test_an_unknown_model_is_not_ready_and_cannot_be_loaded(triton, name):
    assert called(triton, name, lambda services: services.is_model_ready("nobody")) is False
    with pytest.raises(PyTritonInferenceError, match="nobody"):
        called(triton, f"{name}_again", lambda services: services.load_model("nobody"))


def config_of(triton, model):
    with urllib.request.urlopen(
        f"http://{HOST}:{triton.config.http_port}/v2/models/{model}/config", timeout=10
    ) as response:
        return json.load(response)


def test_sequences_go_to_models_that_batch_them(triton, name):
    """Triton refuses a request without a sequence, and one of a sequence that has not begun."""
    other = f"{name}_other"
    bind_floats(triton, other, lambda requests: requests, config=NO_BATCHING)
    config = config_of(triton, other) | {"sequence_batching": {"max_sequence_idle_microseconds": 60_000_000}}
    inputs = {"x": np.ones(1, np.float32)}

    def send(services):
        services.load_model(other, json.dumps(config))
        calls = [
            InferenceCall(other, inputs),
            InferenceCall(other, inputs, correlation_id=7),
            InferenceCall(other, inputs, correlation_id=7, flags=SEQUENCE_START),
            InferenceCall(other, inputs, correlation_id=7),
            InferenceCall(other, inputs, correlation_id=7, flags=SEQUENCE_END),
            InferenceCall(other, inputs, correlation_id=7),
            InferenceCall(other, inputs, correlation_id="seven"),
            InferenceCall(other, inputs, correlation_id="seven", flags=SEQUENCE_START | SEQUENCE_END),
            InferenceCall(other, inputs, correlation_id=(1 << 64) - 1),
        ]
        errors = [services.infer(call, timeout_s=20).error for call in calls]
        found = [re.search(r"must specify|sequence \w+ ", str(error)) for error in errors]
        return [match and match[0] for match in found]

    assert called(triton, name, send) == [
        "must specify",
        "sequence 7 ",
        None,
        None,
        None,
        "sequence 7 ",
        "sequence seven ",
        None,
        f"sequence {(1 << 64) - 1} ",
    ]


def test_a_fork_cannot_use_services(triton, name):
    def send_in_fork(services):
        services.is_model_ready("same")
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                services.is_model_ready("same")
            except PyTritonInvalidOperationError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            return pipe.read()

    assert "is a fork of the one that serves the model" in called(triton, name, send_in_fork)


def test_services_are_unavailable_outside_of_calls(triton, name):
    bind_floats(triton, name, lambda requests: requests)  # the second model
    with pytest.raises(PyTritonInvalidOperationError, match="only from within a call"):
        current_client()
