"""``pytriton run``: a program's models, served by one command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import psutil
import pytest
from probes import get
from programs import SCALE, TENSORS, Program, run_to_end
from serving import HOST, at_once, free_ports, free_ports_environment, is_running, servers, wait_until

SERVES_ITSELF = (
    TENSORS
    + """
with Triton() as triton:
    triton.bind("Scale", batch(lambda x: [x * 2]), **TENSORS)
    triton.serve()
print("after", flush=True)
"""
)

DECLARED = """
from typing import Annotated
import numpy as np
from jaxtyping import Float32
from pytriton import model

@model(name="Triple")
def triple(x: Float32[np.ndarray, "batch n"]) -> Float32[np.ndarray, "batch n"]:
    return x * 3
"""


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)


def test_the_models_of_a_file_are_served_until_a_signal(tmp_path):
    write(tmp_path, app=SCALE + "\nif __name__ == '__main__':\n    raise SystemExit('it was run')\n")
    with Program(tmp_path, "app.py").wait_until_serving() as program:
        assert program.ask("Scale", [1, 2]) == [2, 4]
        assert f"Model Scale v1: http://localhost:{program.port}/v2/models/Scale/infer\n" in program.log
        (server,) = servers(program.process.pid)
        assert program.end() == 0
    assert not is_running(server)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [[], ["--reload"], ["--gateway", "0"]], ids=repr)
def test_signals_shut_it_down_cleanly(tmp_path, number, words):
    write(tmp_path, app=SCALE)
    with Program(tmp_path, "app.py", *words).wait_until_serving() as program:
        program.process.send_signal(number)
        assert program.process.wait(30) == 0
        assert "Traceback" not in program.log


@pytest.mark.parametrize("streams", [">&- 2>&- <&-", ">/dev/full 2>/dev/full"])
def test_it_serves_without_standard_streams(tmp_path, streams):
    write(tmp_path, app=SCALE)
    command = f"exec {sys.executable} -P -m pytriton run app.py {streams}"
    [port] = free_ports(1)
    environment = {**os.environ, **free_ports_environment(), "PYTRITON_TRITON_CONFIG_HTTP_PORT": str(port)}
    with subprocess.Popen(["bash", "-c", command], cwd=tmp_path, env=environment) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or get(port, "/v2/health/ready") == 200, 30, what="ready, or the end"
            )
        finally:
            process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM)  # the latter if it was ready, but did not wait for signals yet


@pytest.mark.parametrize("word", ["app", "app:triton", "app.py:triton", "service.models", "service/models.py"])
def test_a_program_is_named_by_its_file_or_its_module(tmp_path, word):
    write(tmp_path, app=SCALE)
    models = SCALE.replace("FACTOR = 2", "from .part import FACTOR")
    write(tmp_path / "service", __init__="", part="FACTOR = 2", models=models)
    with Program(tmp_path, word).wait_until_serving() as program:
        assert program.ask("Scale", [1]) == [2]


def test_a_program_of_another_folder_finds_the_modules_beside_it(tmp_path):
    (tmp_path / "here").mkdir()
    write(tmp_path / "there", app=SCALE.replace("FACTOR = 2", "from helper import FACTOR"), helper="FACTOR = 5")
    with Program(tmp_path / "here", tmp_path / "there" / "app.py").wait_until_serving() as program:
        assert program.ask("Scale", [1]) == [5]


def test_declared_functions_need_no_triton_object(tmp_path):
    write(tmp_path, app=DECLARED, both=SCALE + DECLARED)
    with Program(tmp_path, "app.py").wait_until_serving() as program:
        assert program.ask("Triple", [1]) == [3]
    with Program(tmp_path, "both.py").wait_until_serving() as program:
        assert [program.ask(name, [1]) for name in ("Triple", "Scale")] == [[3], [2]]


@pytest.mark.parametrize("code", [SCALE, SERVES_ITSELF], ids=["served", "serves itself"])
def test_given_ports_and_host_override_those_of_the_program(tmp_path, code):
    ports = free_ports(3)
    write(tmp_path, app=code.replace("Triton()", "Triton(config=TritonConfig(http_port=1, http_address='0.0.0.0'))"))
    flags = ["--host", HOST, "--port", ports[0], "--grpc-port", ports[1], "--metrics-port", ports[2]]
    with Program(tmp_path, "app.py", *flags).wait_until_serving() as program:
        assert program.port == ports[0]
        assert program.ask("Scale", [1]) == [2]
        (server,) = servers(program.process.pid)
        listening = {each.laddr for each in server.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        assert {address.port for address in listening} == set(ports)
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {HOST}


@pytest.mark.parametrize("code", [SCALE, SERVES_ITSELF], ids=["served", "serves itself"])
def test_a_gateway_is_started(tmp_path, code):
    write(tmp_path, app=code)
    with Program(tmp_path, "app.py", "--gateway", 0).wait_until_serving() as program:
        url = program.wait_for_log(r"Gateway: (\S+) ")[1]
        body = json.dumps({"x": [1, 2]}).encode()
        request = urllib.request.Request(f"{url}/v1/models/Scale", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response) == {"y": [2.0, 4.0]}
        assert "Other machines reach the server" not in program.log


def test_a_program_that_calls_serve_continues_after_it(tmp_path):
    write(tmp_path, app=SERVES_ITSELF)
    with Program(tmp_path, "app.py").wait_until_serving() as program:
        assert program.ask("Scale", [1]) == [2]
        assert program.end() == 0
        assert program.process.stdout.read() == "after\n"


PIDS = (
    TENSORS
    + """
import os
triton = Triton()
tensors = [[Tensor((1,), np.int64, each)] for each in "xy"]

def pid(requests):
    return [{"y": np.int64([os.getpid()])} for _ in requests]

triton.bind("Pid", pid, *tensors, config=ModelConfig(batching=False))
"""
)


def pid_of(program, model="Pid"):
    connection = program.connection()
    row = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [row]}))
    reply = json.loads(connection.getresponse().read())
    connection.close()
    return reply["outputs"][0]["data"][0]


def test_functions_run_in_threads_or_in_processes(tmp_path):
    write(tmp_path, app=PIDS)
    with Program(tmp_path, "app.py", "--workers", "thread").wait_until_serving() as program:
        assert pid_of(program) == program.process.pid
    with Program(tmp_path, "app.py", "--workers", "process", "--instances", 2).wait_until_serving() as program:
        pids = set()
        # One at a time, they would have the process that was busy last.
        wait_until(lambda: pids.update(at_once(8, lambda _: pid_of(program))) or len(pids) == 2, timeout_s=30)
        assert program.process.pid not in pids


def test_functions_of_a_program_that_calls_serve_run_in_processes(tmp_path):
    write(tmp_path, app=PIDS + "triton.serve()\n")
    with Program(tmp_path, "app.py", "--workers", "process").wait_until_serving() as program:
        assert pid_of(program) != program.process.pid
        assert len(servers(program.process.pid)) == 1


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (
            "x = 1",
            ["app.py"],
            "app.py has no Triton at module level, and no function with the decorator @pytriton.model",
        ),
        (
            SCALE + "other = Triton()",
            ["app.py"],
            "app.py has several Triton objects: 'triton', 'other'; name one: app.py:triton",
        ),
        (SCALE, ["app.py:wrong"], "app.py: 'wrong' is not a Triton; there is 'triton'."),
        (SCALE, ["none.py"], "There is no Python file '"),
        (SCALE, ["none"], "There is no module 'none' in "),
        (SCALE, ["a b"], "'a b' is neither a Python file nor the name of a module."),
        (SCALE, ["json.py"], "There is no Python file"),
        (SCALE, ["app.py", "--instances", "0"], "--instances is 0; give a number from 1 up."),
        (
            SERVES_ITSELF,
            ["app.py", "--reload"],
            "app.py starts its server while it is imported, so it cannot be reloaded",
        ),
        (SCALE + "triton.run()", ["app.py", "--reload"], "app.py starts its server while it is imported"),
    ],
)
def test_mistakes_are_reported_in_one_line(tmp_path, code, words, message):
    write(tmp_path, app=code)
    status, error = run_to_end(tmp_path, *words)
    assert status == 1
    assert error.startswith("pytriton: ")
    assert message in error
    assert error.count("\n") == 1, error


def test_a_file_with_the_name_of_another_module_is_refused(tmp_path):
    write(tmp_path, json=SCALE)
    status, error = run_to_end(tmp_path, "json.py")
    assert (status, "json.py has the name of another module, 'json'" in error) == (1, True)


def test_an_exception_of_the_program_is_shown_where_it_is(tmp_path):
    write(
        tmp_path, app="import helper", helper="def fail():\n    raise ValueError('the weights are missing')\nfail()\n"
    )
    status, error = run_to_end(tmp_path, "app.py")
    assert status == 1
    assert error.startswith("pytriton: app.py cannot be imported.\nTraceback (most recent call last):\n")
    assert f'File "{tmp_path / "app.py"}", line 1' in error
    assert error.endswith("ValueError: the weights are missing\n")
    assert "importlib" not in error.splitlines()[2]


def test_a_model_of_a_repository_names_the_command_that_serves_it(tmp_path):
    write(tmp_path, model="import triton_python_backend_utils as pb_utils")
    status, error = run_to_end(tmp_path, "model.py")
    assert (status, "are served by `pytriton serve REPOSITORY`" in error) == (1, True)


def test_a_mistake_in_a_model_is_shown_where_it_is(tmp_path):
    write(tmp_path, app=SCALE.replace('"Scale"', '"S c"'))
    status, error = run_to_end(tmp_path, "app.py")
    assert (status, "Model name 'S c' cannot be" in error) == (1, True)
    assert 'triton.bind("S c", scale, **TENSORS)' in error
    assert error.count("  File ") == 1, error  # no frames of PyTriton


def test_the_exit_status_of_the_program_is_kept(tmp_path):
    write(tmp_path, app="raise SystemExit(7)")
    assert run_to_end(tmp_path, "app.py")[0] == 7


def test_the_last_words_of_the_program_are_a_record_of_a_json_log(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTRITON_LOG_FORMAT", "json")
    write(tmp_path, app="raise SystemExit('no weights')")
    status, error = run_to_end(tmp_path, "app.py")
    assert (status, json.loads(error)["message"]) == (1, "no weights")


def test_a_port_in_use_is_reported(tmp_path):
    write(tmp_path, app=SCALE)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        for words in ([], ["--reload"]):
            status, error = run_to_end(tmp_path, "app.py", "--port", taken.getsockname()[1], *words)
            assert (status, "(--port) is in use" in error) == (1, True)


def test_reload_without_its_package_says_what_to_install(tmp_path):
    write(tmp_path, app=SCALE)
    (tmp_path / "broken").mkdir()
    write(tmp_path / "broken", watchfiles="raise ImportError('not here')")
    environment = {"PYTHONPATH": f"{tmp_path / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    status, error = run_to_end(tmp_path, "app.py", "--reload", environment=environment)
    assert (status, "pip install 'pytriton[reload]'" in error) == (1, True)
