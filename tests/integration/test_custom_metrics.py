"""Metrics of bound callables, on Triton's own endpoint."""

from __future__ import annotations

import sys
import threading

import cloudpickle
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Script, at_once, bind_floats, running_triton, samples_of, scrape, send_floats, server_of, wait_until

from pytriton.decorators import batch
from pytriton.metrics import Counter, Gauge, Histogram
from pytriton.model_config import ModelConfig
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CALLS = Counter("test_calls", "Calls by where they run", ["where"])
LENGTHS = Histogram("test_lengths", "Lengths of requests", buckets=[1, 2, 4])


def shows(triton, name, value, **labels):
    """Waits until the endpoint shows a value, which comes soon."""
    wait_until(lambda: samples_of(triton, name, **labels) == {(): value}, what=f"{name}: {value}", timeout_s=5)


@batch
def in_thread(x):
    CALLS.labels("thread").inc()
    LENGTHS.observe(x.shape[1])
    return [x]


async def in_coroutine(requests):
    CALLS.labels("coroutine").inc()
    return [{"y": request["x"]} for request in requests]


class InProcess:
    def __call__(self, requests):
        CALLS.labels(where="process").inc(2)
        return [{"y": request["x"]} for request in requests]


@pytest.mark.parametrize(
    ("where", "callables", "amount"),
    [("thread", in_thread, 1), ("coroutine", in_coroutine, 1), ("process", [ProcessInstance(InProcess)] * 2, 2)],
)
def test_a_metric_counts_wherever_the_function_runs(triton, name, where, callables, amount):
    bind_floats(triton, name, callables, config=ModelConfig(max_batch_size=1))
    at_once(8, lambda number: send_floats(triton, name, [number]))
    shows(triton, "test_calls_total", 8 * amount, where=where)


def test_a_documentation_of_several_lines_is_one_line_of_help(triton, name):
    bind_floats(triton, name, in_thread)
    text = "Requests\nby C:\\name"
    Counter(f"{name}_lines", text).inc()
    shows(triton, f"{name}_lines_total", 1)
    families = {family.name: family for family in text_string_to_metric_families(scrape(triton))}
    assert families[f"{name}_lines"].documentation == text


def test_observations_of_many_batches_arrive_in_their_buckets(triton, name):
    histogram = Histogram(f"{name}_sizes", "Sizes", buckets=[1, 2, 4])

    @batch
    def measure(x):
        histogram.observe(float(x[0, 0]))
        return [x]

    bind_floats(triton, name, measure, config=ModelConfig(max_batch_size=1))
    for value in (0.5, 1, 1.5, 2, 3.5, 3.75, 100):
        send_floats(triton, name, [value])
    shows(triton, f"{name}_sizes_count", 7)
    assert samples_of(triton, f"{name}_sizes_bucket") == {("1",): 2, ("2",): 4, ("4",): 6, ("+Inf",): 7}
    assert samples_of(triton, f"{name}_sizes_sum")[()] == pytest.approx(112.25)


def test_updates_of_threads_outside_of_requests_arrive_soon(triton, name):
    bind_floats(triton, name, in_thread)
    gauge = Gauge(f"{name}_depth", "Depth of a queue")
    shows(triton, f"{name}_depth", 0)
    for value in (5, -2.5, 7):
        thread = threading.Thread(target=gauge.set, args=[value])
        thread.start()
        thread.join()
        shows(triton, f"{name}_depth", value)
    gauge.dec(3)
    shows(triton, f"{name}_depth", 4)


def test_a_metric_from_before_the_start_is_reported_by_each_server(name):
    gauge = Gauge(f"{name}_ready", "Whether it is")
    gauge.set(1)
    for _ in range(2):
        with running_triton() as triton:
            bind_floats(triton, name, in_thread)
            triton.run()
            shows(triton, f"{name}_ready", 1)


def test_a_restarted_server_gets_all_values(name):
    with running_triton() as triton:
        bind_floats(triton, name, in_thread)
        triton.run()
        counter = Counter(f"{name}_seen", "Seen")
        counter.inc(3)
        shows(triton, f"{name}_seen_total", 3)
        server_of(triton).kill()
        counter.inc(2)
        wait_until(lambda: samples_after_restart(triton, f"{name}_seen_total") == {(): 5}, timeout_s=20)


def samples_after_restart(triton, name):
    try:
        return samples_of(triton, name)
    except OSError:
        return None


def test_metrics_stay_while_models_are_bound_and_unbound(triton, name):
    counter = Counter(f"{name}_calls", "Calls")

    def count(requests):
        counter.inc()
        return [{"y": request["x"]} for request in requests]

    for round_ in range(3):
        bind_floats(triton, name, count)
        send_floats(triton, name, [1])
        shows(triton, f"{name}_calls_total", round_ + 1)
        triton.unbind(name)
    assert scrape(triton).count(f"# TYPE {name}_calls_total counter") == 1


def test_no_update_of_many_threads_is_lost(triton, name):
    bind_floats(triton, name, in_thread)
    counter = Counter(f"{name}_updates", "Updates", ["thread"])
    at_once(4, lambda number: [counter.labels(number).inc() for _ in range(10_000)])
    for number in range(4):
        shows(triton, f"{name}_updates_total", 10_000, thread=str(number))


def test_functions_are_served_without_metrics_on_the_server(name):
    with running_triton(allow_metrics=False) as triton:
        bind_floats(triton, name, in_thread)
        triton.run()
        assert send_floats(triton, name, [1]) == [1]


FORK = """
import os
import numpy as np
from pytriton.metrics import Counter
C = Counter("forked", "Forked")
C.inc()
pid = os.fork()
C.inc()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
"""


def test_a_fork_of_the_process_may_count_on(tmp_path):
    with Script(tmp_path, FORK) as script:
        assert script.line() == "0", script.stderr
