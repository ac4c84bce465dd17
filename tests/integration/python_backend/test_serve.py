"""``pytriton serve``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from serving import FREE_PORTS, HOST, OwnProcess, bind_floats, running_triton, wait_until
from worker_models import MODEL, none_runs, write_model

from pytriton.cli.main import main
from pytriton.server.config import TritonConfig


class Command(OwnProcess):
    """The command, in its own process."""

    def __init__(self, folder, repository, *flags):
        ports = [f"--{name.replace('_', '-')}={port}" for name, port in FREE_PORTS.items()]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "pytriton", "serve", repository, *ports, *flags],
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        return self._log.read_text()

    def wait_until_serving(self):
        wait_until(lambda: "Serving on" in self.log, timeout_s=30)

    def request(self, path, body, **headers):
        port = re.search(r"Serving on http://127.0.0.1:(\d+)", self.log)[1]
        request = urllib.request.Request(f"http://{HOST}:{port}{path}", body, headers)
        with urllib.request.urlopen(request) as response:
            return response.status


BODY = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'


def test_models_import_modules_of_the_folder_in_which_the_server_was_started(tmp_path, own_home):
    (tmp_path / "beside_the_server.py").write_text("")
    write_model(tmp_path / "models", "model", code="import beside_the_server\n" + MODEL)
    with Command(tmp_path, tmp_path / "models") as command:
        command.wait_until_serving()
        assert command.request("/v2/models/model/infer", BODY) == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_repository_is_served_until_a_signal_comes(tmp_path, own_home, number):
    write_model(tmp_path / "models", "model")
    with Command(tmp_path, tmp_path / "models") as command:
        command.wait_until_serving()
        assert command.request("/v2/models/model/infer", BODY) == 200
        processes = [command.process, *command.process.children(recursive=True)]
        wait_until(lambda: "Model model v1: " in command.log)  # from here on, a signal shuts it down cleanly
        command.process.send_signal(number)
        assert command.process.wait(20) == 0
        assert none_runs(processes)
        assert "finalized model" in command.log
    assert list(own_home.iterdir()) == []


def test_it_prints_its_addresses_when_all_models_are_loaded(tmp_path):
    write_model(tmp_path / "models", "model", start="import time; time.sleep(1)")
    with Command(tmp_path, tmp_path / "models") as command:
        command.wait_until_serving()
        assert command.request("/v2/models/model/infer", BODY) == 200
        assert command.log.count("Serving on") == 1


@pytest.mark.parametrize("has_repository", [True, False])
def test_a_script_prints_its_addresses_once(tmp_path, caplog, has_repository):
    write_model(tmp_path, "model")
    with (
        caplog.at_level(logging.INFO),
        running_triton(model_repository=tmp_path if has_repository else None) as triton,
    ):
        bind_floats(triton, "bound", lambda requests: requests)
        assert "Serving on" not in caplog.text
        triton.run()
        triton.run()
    assert len([line for line in caplog.messages if line.startswith("Serving on http://")]) == 1


def test_settings_and_the_token_reach_the_server(tmp_path):
    write_model(tmp_path / "models", "model")
    flags = ["--token=secret", "--backend-config=python,shm-growth-byte-size=1", "--allow-grpc", "false"]
    with Command(tmp_path, tmp_path / "models", *flags) as command:
        command.wait_until_serving()
        path = "/v2/repository/models/model/load"
        assert command.request(path, b"{}", **{"triton-access-token": "secret"}) == 200
        assert "shm-growth-byte-size has no effect" in command.log
        assert "grpc://" not in command.log


def test_a_failed_load_ends_the_command(tmp_path):
    write_model(tmp_path / "models", "model", start="raise ValueError('no weights')")
    with Command(tmp_path, tmp_path / "models") as command:
        assert command.process.wait(30) == 1
        assert re.search(r"pytriton: The server cannot load model 'model' .* ValueError: no weights", command.log)


def test_a_folder_whose_name_no_model_can_have_is_named(tmp_path):
    write_model(tmp_path / "models", "add_sub (copy)")
    with Command(tmp_path, tmp_path / "models") as command:
        assert command.process.wait(30) == 1
        assert re.search(r"cannot load model 'add_sub \(copy\)' from .*: Model name .* use 1 to 255", command.log)


@pytest.mark.parametrize("strict", [True, False])
def test_the_other_models_are_served_without_exit_on_error(tmp_path, strict):
    write_model(tmp_path / "models", "good")
    write_model(tmp_path / "models", "bad", start="raise ValueError('no weights')")
    flags = ["--exit-on-error=false", f"--strict-readiness={str(strict).lower()}"]
    with Command(tmp_path, tmp_path / "models", *flags) as command:
        command.wait_until_serving()
        assert command.request("/v2/models/good/infer", BODY) == 200
        assert re.search(r"ERROR The server cannot load model 'bad' .* ValueError: no weights", command.log)
        wait_until(lambda: "Model good v1: " in command.log)
        assert "Model bad" not in command.log
        with pytest.raises(urllib.error.HTTPError, match="400") if strict else contextlib.nullcontext():
            command.request("/v2/health/ready", None)
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(20) == 0


PRINTS_AND_FAILS = """
import sys

class TritonPythonModel:
    def execute(self, requests):
        print("+---+", "| a |", "| --- | --- |", sep="\\n", flush=True)
        print("a word of warning", file=sys.stderr)
        raise ValueError("no luck")
"""


def test_output_of_a_model_is_logged_as_information_even_after_an_error(tmp_path):
    write_model(tmp_path / "models", "model", code=PRINTS_AND_FAILS)
    with Command(tmp_path, tmp_path / "models") as command:
        command.wait_until_serving()
        for number in (1, 2):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                command.request("/v2/models/model/infer", BODY)
            wait_until(lambda number=number: command.log.count("\nValueError: no luck\n") == number)
        assert command.log.count(" ERROR model 'model'") == 2
        for line in ("+---+", "| a |", "| --- | --- |", "a word of warning"):
            wait_until(lambda line=line: command.log.count(f" INFO {line}\n") == 2)


def test_mistakes_are_reported_in_one_line(tmp_path, capsys):
    ports = [word for name in FREE_PORTS for word in (f"--{name.replace('_', '-')}", "0")]
    assert main(["serve", str(tmp_path / "missing"), *ports]) == 1
    assert re.match(r"pytriton: REPOSITORY is '.*/missing'.*\n$", capsys.readouterr().err)
    assert main(["serve", str(tmp_path), "--http-port", "many"]) == 1
    assert capsys.readouterr().err == "pytriton: --http-port is 'many'; use an integer.\n"


def test_every_setting_is_a_flag(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = capsys.readouterr().out
    fields = [field.name for field in dataclasses.fields(TritonConfig) if field.name != "model_repository"]
    assert [name for name in fields if f"  --{name.replace('_', '-')} " not in said] == []
    assert "Identifier of the server." in said


def test_the_other_commands_start_without_the_server(tmp_path):
    code = "import sys; from pytriton.cli import main; assert 'pytriton.triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
