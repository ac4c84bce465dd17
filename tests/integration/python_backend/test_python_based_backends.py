"""Python-based backends: one ``model.py`` in a backend's folder serves all models of that backend."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys
import urllib.request

import psutil
import pytest
from serving import (
    FREE_PORTS,
    HOST,
    at_once,
    free_config,
    metrics_of,
    request_json,
    running_triton,
    send_floats,
    wait_until,
)
from streaming import events_of
from worker_models import kill, write_model

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.server.files import find_server
from pytriton.triton import Triton

# An engine that is laid out as vLLM's backend: model.py and utils/ in the backend's folder, model.json in the model's.
ENGINE = """
import asyncio
import json
import os
import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

from utils.metrics import Counter
from utils.request import GenerateRequest


class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, auto_complete_model_config):
        inputs = [
            {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
            {"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        ]
        config = auto_complete_model_config.as_dict()
        names = [each["name"] for each in config["input"]]
        for each in inputs:
            if each["name"] not in names:
                auto_complete_model_config.add_input(each)
        if not config["output"]:
            auto_complete_model_config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        auto_complete_model_config.set_model_transaction_policy(dict(decoupled=True))
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        self.args = args
        self.logger = pb_utils.Logger
        self.model_config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.model_config)
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.engine_args = json.load(file)
        output = pb_utils.get_output_config_by_name(self.model_config, "text_output")
        self.output_dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        self.counter = Counter({"model": args["model_name"], "version": args["model_version"]})
        self.loop = asyncio.new_event_loop()
        self.loop_thread = threading.Thread(target=self.loop.run_forever)
        self.loop_thread.start()
        self.responses = queue.Queue()
        self.response_thread = threading.Thread(target=self.send_responses)
        self.response_thread.start()

    def execute(self, requests):
        for request in requests:
            asyncio.run_coroutine_threadsafe(self.generate(request), self.loop)
        return None

    async def generate(self, request):
        sender = request.get_response_sender()
        try:
            async for text, last in GenerateRequest(request, self.engine_args, self.args).words():
                output = pb_utils.Tensor("text_output", np.asarray([text], dtype=self.output_dtype))
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
                self.responses.put((sender, pb_utils.InferenceResponse(output_tensors=[output]), flags))
            self.counter.words.increment(1)
        except Exception as error:
            failure = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"Error generating stream: {error}"))
            self.responses.put((sender, failure, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL))

    def send_responses(self):
        while (each := self.responses.get()) is not None:
            sender, response, flags = each
            sender.send(response, flags)

    def finalize(self):
        self.logger.log_info("the engine stops")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.loop_thread.join()
        self.responses.put(None)
        self.response_thread.join()
"""
METRICS = """
import triton_python_backend_utils as pb_utils


class Counter:
    def __init__(self, labels):
        family = pb_utils.MetricFamily("engine_requests_total", "Requests", pb_utils.MetricFamily.COUNTER)
        self.words = family.Metric(labels=labels)
"""
REQUEST = """
import asyncio
import json
import os

import triton_python_backend_utils as pb_utils


class GenerateRequest:
    def __init__(self, request, engine_args, args):
        self.text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().item().decode()
        self.engine_args, self.args = engine_args, args

    async def words(self):
        if self.text == "pid":
            yield str(os.getpid()), True
            return
        if self.text == "args":
            yield json.dumps(self.args), True
            return
        for word in self.text.split():
            if word == "fail":
                raise ValueError("no such word")
            await asyncio.sleep(0.01)
            yield self.engine_args["prefix"] + word, False
        yield "", True
"""
MODEL = """
backend: "engine"
instance_group [{count: 1 kind: KIND_MODEL}]
"""


def write_backend(folder):
    (folder / "engine" / "utils").mkdir(parents=True)
    (folder / "engine" / "model.py").write_text(ENGINE)
    (folder / "engine" / "utils" / "metrics.py").write_text(METRICS)
    (folder / "engine" / "utils" / "request.py").write_text(REQUEST)
    return folder


def write_engine_model(repository, name, prefix, config=MODEL):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.json").write_text(json.dumps({"prefix": prefix}))
    if config:
        (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    return write_backend(tmp_path_factory.mktemp("backends"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_engine_model(repository, "small", "s-")
    write_engine_model(repository, "large", "l-")
    write_model(repository, "plain")
    return repository


@pytest.fixture(scope="module")
def triton(repository, backends):
    with running_triton(model_repository=repository, backend_directory=backends) as triton:
        triton.run()
        yield triton


def generated(triton, model, text):
    """What the model generates from a text, word by word."""
    with events_of(triton, model, {"text_input": text, "stream": True}) as events:
        return [each.get("text_output", each.get("error")) for each in events]


def test_a_backend_serves_several_models(triton):
    assert generated(triton, "small", "a b") == ["s-a", "s-b", ""]
    assert generated(triton, "large", "a") == ["l-a", ""]


def test_models_with_their_own_code_are_served_beside_it(triton):
    assert send_floats(triton, "plain", [1])[0] == 2


def test_many_requests_are_in_flight_at_a_time(triton):
    said = at_once(20, lambda number: generated(triton, "small", f"{number} b"))
    assert said == [[f"s-{number}", "s-b", ""] for number in range(20)]


def test_an_error_of_the_engine_reaches_its_client(triton):
    assert generated(triton, "small", "a fail") == ["s-a", "Error generating stream: no such word"]


def test_the_backend_gets_the_arguments_of_the_model(triton):
    (text,) = generated(triton, "small", "args")
    args = json.loads(text)
    assert (args["model_name"], args["model_version"], args["model_instance_name"]) == ("small", "1", "small_0_0")
    assert pathlib.Path(args["model_repository"]).name == "small"
    assert (pathlib.Path(args["model_repository"]) / "1" / "model.json").is_file()
    assert args["model_instance_kind"] == "MODEL"


def test_the_backend_completes_the_configuration(triton):
    _, config = request_json(triton, "GET", "/v2/models/small/config")
    assert [each["name"] for each in config["input"]] == ["text_input", "stream", "sampling_parameters"]
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0


def test_metrics_of_the_backend_are_reported_by_the_server(triton):
    before = metrics_of(triton, "large")["engine_requests_total"]
    generated(triton, "large", "a")
    wait_until(lambda: metrics_of(triton, "large")["engine_requests_total"] == before + 1)


def test_a_killed_process_is_restarted(triton):
    kill(int(generated(triton, "small", "pid")[0]))
    assert generated(triton, "small", "a") == ["s-a", ""]


def test_a_backend_without_its_class_fails_the_load(tmp_path):
    (tmp_path / "backends" / "empty").mkdir(parents=True)
    (tmp_path / "backends" / "empty" / "model.py").write_text("")
    write_engine_model(tmp_path / "models", "m", "", MODEL.replace("engine", "empty"))
    triton = running_triton(model_repository=tmp_path / "models", backend_directory=tmp_path / "backends")
    with (
        triton,
        pytest.raises(
            PyTritonInvalidOperationError, match=r"backends/empty/model\.py has no class 'TritonPythonModel'"
        ),
    ):
        triton.run()


def test_settings_of_the_python_backend_apply_to_the_backend_too(tmp_path, backends):
    write_engine_model(tmp_path, "m", "")
    settings = {"backend_directory": backends, "backend_config": ["python,python-runtime=/nowhere/python"]}
    with (
        running_triton(model_repository=tmp_path, **settings) as triton,
        pytest.raises(PyTritonInvalidOperationError, match="/nowhere/python"),
    ):
        triton.run()


def test_a_custom_server_may_have_such_backends(tmp_path):
    root = find_server().root
    own = tmp_path / "own"
    shutil.copytree(root, own, symlinks=True, ignore=shutil.ignore_patterns("backends"))
    write_backend(own / "backends")
    write_engine_model(tmp_path / "models", "m", "o-")
    with Triton(config=free_config(model_repository=tmp_path / "models"), server_path=own) as triton:
        triton.run()
        assert generated(triton, "m", "a") == ["o-a", ""]


def test_the_command_line_names_a_folder_of_backends(tmp_path, backends):
    write_engine_model(tmp_path / "models", "m", "c-")
    ports = [f"--{name.replace('_', '-')}={port}" for name, port in FREE_PORTS.items()]
    arguments = ["serve", tmp_path / "models", f"--backend-directory={backends}", *ports]
    with (tmp_path / "log").open("w") as log:
        command = psutil.Popen([sys.executable, "-m", "pytriton", *arguments], cwd=tmp_path, stdout=log, stderr=log)
    try:
        found = wait_until(lambda: re.search(r"Serving on http://127.0.0.1:(\d+)", (tmp_path / "log").read_text()), 30)
        url = f"http://{HOST}:{found[1]}/v2/models/m/generate_stream"
        with urllib.request.urlopen(url, json.dumps({"text_input": "a"}).encode()) as response:
            assert b'"text_output":"c-a"' in response.read()
    finally:
        command.terminate()
        assert command.wait(30) == 0
