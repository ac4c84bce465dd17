"""Models of a repository that cannot be loaded."""

from __future__ import annotations

import logging
import re

import pytest
from serving import is_ready, is_running, running_triton, server_of, wait_until
from worker_models import MODEL, command, send_request, workers_of, write_model

from pytriton.exceptions import PyTritonInvalidOperationError


def test_a_load_fails_with_the_exit_status_of_the_models_process(triton, repository, name):
    write_model(repository, name, start="import os; os._exit(3)")
    status, response = command(triton, name, "load")
    assert status == 400
    assert f"model '{name}': its worker process ended with exit status 3" in response["error"]


def test_a_failed_start_leaves_neither_model_nor_process(triton, repository, name, caplog):
    before = {worker.pid for worker in workers_of(triton)}
    write_model(repository, name, start="raise ValueError('no weights')")
    with caplog.at_level(logging.ERROR):
        status, response = command(triton, name, "load")
        assert status == 400
        assert f"model '{name}': ValueError: no weights" in response["error"]
        wait_until(lambda: "Traceback (most recent call last)" in caplog.text)
    assert {worker.pid for worker in workers_of(triton)} <= before


WARMUP = """
model_warmup [
  {name: "zeros" batch_size: 1 inputs {key: "x" value {data_type: TYPE_FP32 dims: [2] zero_data: true}}}
]
"""


def test_a_failed_warm_up_leaves_the_model_unloaded_and_the_server_running(triton, repository, name):
    code = MODEL.replace("    def answer(self, x):", "    def answer(self, x):\n        raise ValueError('cold')")
    write_model(repository, name, code=code, config=WARMUP)
    for _ in range(3):  # the server would not always crash
        status, response = command(triton, name, "load")
        assert status == 400
        assert "failed to run warmup sample 'zeros'" in response["error"]
        assert "ValueError: cold" in response["error"]
    assert triton.is_alive()


def test_a_start_that_takes_too_long_fails_the_load_with_the_reason(tmp_path):
    write_model(tmp_path, "slow", start="import time; time.sleep(1000)")
    with running_triton(model_repository=tmp_path, backend_config=["python,stub-timeout-seconds=2"]) as triton:
        triton.connect()
        server = server_of(triton)
        with pytest.raises(PyTritonInvalidOperationError) as raised:
            triton.run()
    assert "model 'slow': its worker process has not replied for 2 s and was killed" in str(raised.value)
    assert not is_running(server)


def test_run_names_every_model_that_cannot_be_loaded(tmp_path, caplog):
    write_model(tmp_path, "good")
    write_model(tmp_path, "bad", start="raise ValueError('one')")
    write_model(tmp_path, "worse", start="raise ValueError('two')")
    with running_triton(model_repository=tmp_path) as triton, pytest.raises(PyTritonInvalidOperationError) as raised:
        triton.run()
    assert "model 'bad' from" in str(raised.value)
    assert "ValueError: one" in str(raised.value)
    assert "The server cannot load model 'worse'" in caplog.text


def test_a_mistake_in_a_configuration_is_shown_with_its_line(tmp_path):
    write_model(tmp_path, "typo", config="max_batch: 8")
    with running_triton(model_repository=tmp_path) as triton, pytest.raises(PyTritonInvalidOperationError) as raised:
        triton.run()
    assert "The server cannot load model 'typo' from" in str(raised.value)
    assert re.search(r'config\.pbtxt \(line \d+, column \d+: .*no field named "max_batch"', str(raised.value))


def test_without_exit_on_error_the_other_models_are_served_also_after_a_restart(tmp_path, caplog):
    write_model(tmp_path, "good")
    write_model(tmp_path, "bad", start="raise ValueError('one')")
    write_model(tmp_path, "worse", start="raise ValueError('two')")
    with running_triton(model_repository=tmp_path, exit_on_error=False) as triton:
        triton.run()
        assert send_request(triton, "good", 1)[0] == 2
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        for name, reason in (("bad", "one"), ("worse", "two")):
            pattern = f"The server cannot load model '{name}' from .* ValueError: {reason}"
            assert len([each for each in errors if re.match(pattern, each)]) == 1
        server = server_of(triton)
        server.kill()
        wait_until(lambda: not is_running(server) and is_ready(triton))
        assert send_request(triton, "good", 1)[0] == 2


def test_without_exit_on_error_a_server_that_exits_while_loading_is_still_an_error(tmp_path):
    write_model(tmp_path, "fatal", start="import os; os.kill(os.getppid(), 9)")
    with (
        running_triton(model_repository=tmp_path, exit_on_error=False) as triton,
        pytest.raises(PyTritonInvalidOperationError, match="cannot load model 'fatal'"),
    ):
        triton.run()
    assert not triton.is_alive()
