"""JSON logs of programs: each line of standard error is an object, whatever its source."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time

import pytest
from otlp import Receiver
from programs import Program
from python_backend.test_serve import BODY, Command
from serving import HOST, Script, at_once, free_ports, infer_json, json_floats, request_json, wait_until
from worker_models import write_model

PROGRAM = """
import asyncio
import json
import logging
import os
import warnings

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton, TritonConfig

LOGGER = logging.getLogger("mine")
TENSORS = [Tensor(name="x", shape=(-1,), dtype=np.float32)], [Tensor(name="y", shape=(-1,), dtype=np.float32)]

def plain(requests):
    LOGGER.warning("plain\\nof %d", len(requests))
    return [{"y": request["x"]} for request in requests]

async def coroutine(requests):
    async def inner():
        await asyncio.sleep(0)
        LOGGER.warning("coroutine")
    await asyncio.create_task(inner())
    return [{"y": request["x"]} for request in requests]

def stream(requests):
    LOGGER.warning("stream")
    yield [{"y": request["x"]} for request in requests]

def fail(requests):
    warnings.warn("beware")
    raise ValueError("no\\nluck")

class Creates:
    def __call__(self, requests):
        print("printed\\nin two lines", flush=True)
        LOGGER.warning("process")
        if requests[0]["x"][0, 0] < 0:
            raise KeyError("negative")
        return [{"y": request["x"]} for request in requests]

triton = Triton(config=TritonConfig(trace_config=json.loads(os.environ["TRACE_CONFIG"])))
for function in (plain, coroutine, fail):
    batcher = DynamicBatcher(max_queue_delay_microseconds=300_000)
    config = ModelConfig(max_batch_size=4, batcher=batcher)
    triton.bind(function.__name__, function, *TENSORS, config=config)
triton.bind("stream", stream, *TENSORS, config=ModelConfig(decoupled=True))
triton.bind("process", ProcessInstance(Creates), *TENSORS)
"""


def entries_of(log):
    """The objects in a log; all of its lines must be one."""
    entries = [json.loads(line) for line in log.splitlines()]
    assert all({"timestamp", "level", "logger", "message", "process"} <= set(entry) for entry in entries)
    return entries


def records_of(log, message):
    """The records with a message, of a log that is being written."""
    return [json.loads(line) for line in log.splitlines() if f'"message":{json.dumps(message)}' in line]


class _At:
    """Stands for the server at a port."""

    def __init__(self, port):
        self.config = self
        self.http_port = port


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program with models of every kind, and a gateway."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "app.py").write_text(PROGRAM)
    (port,) = free_ports(1)
    with (
        Receiver() as receiver,
        Program(
            folder,
            *("app.py", "--log-format", "json", "--gateway", port),
            environment={"TRACE_CONFIG": json.dumps(receiver.trace_config())},
        ) as program,
    ):
        program.wait_until_serving()
        program.gateway_port = port
        yield program
        assert program.end() == 0
        entries = entries_of(program.log)
        assert {"pytriton.server.tritonserver", "uvicorn.error", "pytriton.triton"} <= {
            each["logger"] for each in entries
        }


def infer(program, model, values=(1,), **fields):
    return infer_json(_At(program.port), model, [json_floats(list(values))], **fields)


@pytest.mark.parametrize("model", ["plain", "coroutine", "process"])
def test_a_record_within_a_request_names_it_and_its_model(program, model):
    message = "plain\nof 1" if model == "plain" else model
    assert infer(program, model, id=f"request of {model}")[0] == 200
    (record,) = wait_until(lambda: records_of(program.log, message))
    assert (record["logger"], record["level"]) == ("mine", "WARNING")
    assert (record["model"], record["model_version"], record["request_id"]) == (model, 1, f"request of {model}")
    assert "request_ids" not in record


def test_a_record_of_several_requests_names_all(program):
    def send(number):
        return infer(program, "plain", id=f"id{number}")[0]

    assert at_once(4, send) == [200] * 4
    (record,) = wait_until(lambda: records_of(program.log, "plain\nof 4"))
    assert sorted(record["request_ids"]) == ["id0", "id1", "id2", "id3"]
    assert record["model"] == "plain"
    assert "request_id" not in record


@pytest.mark.parametrize(
    ("model", "values", "error"), [("fail", [1], "ValueError: no\nluck"), ("process", [-1], "KeyError")]
)
def test_a_failure_is_logged_with_its_traceback_and_its_request(program, model, values, error):
    assert infer(program, model, values, id=f"failed {model}")[0] == 500
    (record,) = wait_until(lambda: records_of(program.log, f"model {model!r}: the inference callable failed"))
    assert (record["logger"], record["level"]) == ("pytriton.callable", "ERROR")
    assert record["exception"].startswith("Traceback (most recent call last):\n")
    assert error in record["exception"]
    assert (record["model"], record["request_id"]) == (model, f"failed {model}")


@pytest.mark.parametrize(
    ("model", "message", "value"),
    [
        ("plain", "plain\nof 1", 1),
        ("coroutine", "coroutine", 1),
        ("process", "process", 1),
        ("fail", "model 'fail': the inference callable failed", 1),
        ("process", "model 'process': the inference callable failed", -1),
    ],
)
def test_a_record_names_the_trace_that_its_request_belongs_to(program, model, message, value):
    trace_id = f"{time.monotonic_ns():032x}"
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    body = {"inputs": [json_floats([value])]}
    status, _ = request_json(_At(program.port), "POST", f"/v2/models/{model}/infer", body, headers)
    assert status == (200 if "failed" not in message else 500)
    (record,) = wait_until(
        lambda: [each for each in records_of(program.log, message) if each.get("trace_id") == trace_id]
    )
    assert re.fullmatch("[0-9a-f]{16}", record["span_id"])


def test_each_printed_line_of_a_process_is_a_record(program):
    assert infer(program, "process")[0] == 200
    (*_, line) = wait_until(lambda: records_of(program.log, "in two lines"))
    assert (line["logger"], line["model"], line["instance"]) == ("pytriton.process.output", "process", 0)


@pytest.mark.parametrize(("model", "message"), [("plain", "plain\nof 1"), ("stream", "stream")])
def test_the_gateway_passes_the_id_of_its_request_to_the_model(program, model, message):
    name = f"through the gateway to {model}".replace(" ", "-")
    connection = http.client.HTTPConnection(HOST, program.gateway_port, timeout=60)
    headers = {"x-request-id": name, "accept": "text/event-stream"} if model == "stream" else {"x-request-id": name}
    connection.request("POST", f"/v1/models/{model}", '{"x": [1]}', headers)
    response = connection.getresponse()
    assert response.status == 200
    assert b"1.0" in response.read()
    connection.close()
    wait_until(lambda: [each for each in records_of(program.log, message) if each.get("request_id") == name])


def test_a_line_of_the_server_names_its_source(program):
    record = records_of(program.log, "successfully loaded 'plain'")[0]
    assert (record["logger"], record["level"], record["file"]) == (
        "pytriton.server.tritonserver",
        "INFO",
        "model_lifecycle.cc",
    )
    assert record["line"] > 0
    assert record["process"] != program.process.pid


REPOSITORY_MODEL = """
import logging
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        logging.getLogger("theirs").warning("a\\nb")
        print("printed")
        pb_utils.Logger.log_warn("to the server")
        x = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each)]) for each in x]
"""


def test_models_of_a_repository_log_as_json(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTRITON_LOG_FORMAT", "json")
    write_model(tmp_path / "models", "model", code=REPOSITORY_MODEL)
    with Command(tmp_path, tmp_path / "models") as command:
        command.wait_until_serving()
        assert command.request("/v2/models/model/infer", BODY.replace(b'{"inputs"', b'{"id": "seven", "inputs"')) == 200
        (record,) = wait_until(lambda: records_of(command.log, "a\nb"))
        assert (record["logger"], record["model"], record["request_id"]) == ("theirs", "model", "seven")
        wait_until(lambda: records_of(command.log, "printed"))
        (record,) = wait_until(lambda: records_of(command.log, "to the server"))
        assert (record["level"], record["file"]) == ("WARNING", "model.py")
        wait_until(lambda: "/v2/models/model/infer" in command.log)  # announced: from now on, signals end it gracefully
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(20) == 0
        entries_of(command.log)


SCRIPT = """
import logging, threading, warnings, sys
from pytriton.triton import Triton, TritonConfig
{before}
with Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0)) as triton:
    triton.run()
    logging.getLogger("mine").info("information")
    warnings.warn("beware")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
{after}
"""


@pytest.mark.parametrize(
    ("before", "has_information"),
    [
        ("logging.basicConfig(level=logging.WARNING, format='mine: %(message)s')", False),
        ("from pytriton.json_logs import log_as_json; log_as_json('info')", True),
    ],
)
def test_an_unchanged_script_logs_as_json(before, has_information, tmp_path, monkeypatch):
    if "log_as_json" not in before:
        monkeypatch.setenv("PYTRITON_LOG_FORMAT", "json")
    with Script(tmp_path, SCRIPT.format(before=before, after="raise ValueError('the end')")) as script:
        assert script.wait() == 1
        entries = entries_of(script.stderr)
    messages = [entry["message"] for entry in entries]
    assert ("information" in messages) == has_information
    assert any("UserWarning: beware" in message for message in messages)
    exceptions = [entry["exception"] for entry in entries if entry["level"] == "CRITICAL"]
    assert "ZeroDivisionError" in exceptions[0]
    assert "ValueError: the end" in exceptions[1]


def test_a_failing_command_reports_its_error_in_json(tmp_path):
    with Program(tmp_path, "nothing.py", "--log-format", "json") as program:
        assert program.process.wait(30) == 1
        (entry,) = entries_of(program.log)
    assert entry["level"] == "CRITICAL"
    assert "nothing.py" in entry["message"]
