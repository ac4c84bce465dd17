"""What models of a repository use of the server: its log, metrics and model control."""

from __future__ import annotations

import json
import logging
import re
import urllib.request

from pb_models import HEAD, TEXT, execute, text_of
from serving import HOST, infer_json, json_floats, send_floats, wait_until
from worker_models import write_model


def test_lines_are_written_to_the_log(triton, name, load, caplog):
    body = """
def initialize(self, args):
    pb_utils.Logger.log_warn("loaded " + args["model_name"])

def execute(self, requests):
    pb_utils.Logger.log_error("asked " + pb_utils.Logger.__name__)
    pb_utils.Logger.log("told", pb_utils.Logger.INFO)
    return [y(1) for _ in requests]
"""
    with caplog.at_level(logging.INFO):
        load(body)
        assert send_floats(triton, name, [1]) == [1]
        wait_until(lambda: {f"loaded {name}", "asked Logger", "told"} <= set(caplog.messages))
    levels = {record.message: record.levelname for record in caplog.records}
    assert [levels[each] for each in (f"loaded {name}", "asked Logger", "told")] == ["WARNING", "ERROR", "INFO"]


def test_metrics_are_on_its_endpoint(triton, name, load):
    body = f"""
def initialize(self, args):
    kinds = pb_utils.MetricFamily
    labels = {{"model": args["model_name"]}}
    self.counter = kinds("{name}_total", "Requests", kinds.COUNTER).Metric(labels)
    self.gauge = kinds(name="{name}_gauge", description="A level", kind=kinds.GAUGE).Metric(labels=labels)
    family = kinds("{name}_histogram", "Times", kinds.HISTOGRAM)
    self.histogram = family.Metric(labels=labels, buckets=[1, 10])

def execute(self, requests):
    self.counter.increment(len(requests))
    self.gauge.set(2.5)
    self.histogram.observe(5)
    try:
        self.counter.increment(-1)
    except pb_utils.TritonModelException:
        return [y(self.counter.value(), self.gauge.value()) for _ in requests]
"""
    load(body)
    assert send_floats(triton, name, [1]) == [1, 2.5]
    assert send_floats(triton, name, [1]) == [2, 2.5]
    with urllib.request.urlopen(f"http://{HOST}:{triton.config.metrics_port}/metrics", timeout=10) as response:
        text = response.read().decode()
    assert f'{name}_total{{model="{name}"}} 2' in text
    assert f'{name}_gauge{{model="{name}"}} 2.5' in text
    assert re.search(rf'{name}_histogram_bucket{{model="{name}",le="10"}} 2', text)


def test_labels_of_metrics_are_strings(triton, name, load):
    body = f"""
family = pb_utils.MetricFamily("{name}_total", "Requests", pb_utils.MetricFamily.COUNTER)
family.Metric(labels={{b"a": b"1"}}).increment(1)
told = []
for labels in ({{"a": 1}}, {{1: "a"}}, {{"a": None}}):
    try:
        family.Metric(labels=labels)
    except pb_utils.TritonModelException as error:
        told.append(str(error))
return [text(told)]
"""
    load(execute(body), whole=TEXT)
    assert text_of(triton, name) == [
        "label 'a' is 1, of type int: use a string",
        "a label's name is 1, of type int: use a string",
        "label 'a' is None, of type NoneType: use a string",
    ]


def test_values_of_metrics_are_numbers(triton, name, load):
    body = f"""
family = pb_utils.MetricFamily("{name}_gauge", "A level", pb_utils.MetricFamily.GAUGE)
gauge = family.Metric()
gauge.set(np.array([1.5], np.float32)[0])
gauge.increment(True)
told = [gauge.value()]
for change in (gauge.set, gauge.increment, gauge.observe):
    for value in ("2", None):
        try:
            change(value)
        except TypeError as error:
            told.append(str(error))
return [text(told)]
"""
    load(execute(body), whole=TEXT)
    refused = [f"a metric's value is {value}: use a number" for value in ("'2', of type str", "None, of type NoneType")]
    assert text_of(triton, name) == [2.5, *refused * 3]


def test_models_are_loaded_and_unloaded(triton, name, load, repository):
    write_model(repository, f"{name}_other")
    body = f"""
other = "{name}_other"
before = pb_utils.is_model_ready(other)
pb_utils.load_model(model_name=other)
during = pb_utils.is_model_ready(other, "1")
pb_utils.unload_model(other)
try:
    pb_utils.load_model("nobody")
except pb_utils.TritonModelException as error:
    return [text([before, during, "nobody" in str(error)])]
"""
    load(execute(body), whole=TEXT)
    assert text_of(triton, name) == [False, True, True]


def test_a_model_is_loaded_with_given_files(triton, name, load):
    config = {
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    code = HEAD + "    def execute(self, requests):\n        return [y(5) for _ in requests]\n"
    body = f"""
files = {{"file:1/model.py": {code!r}.encode()}}
pb_utils.load_model("{name}_made", config={json.dumps(config)!r}, files=files)
return [y(value_of(ask("{name}_made", 1).exec()))]
"""
    load(execute(body))
    assert send_floats(triton, name, [1]) == [5]
    _, reply = infer_json(triton, f"{name}_made", [json_floats([1])])
    assert reply["outputs"][0]["data"] == [5]
