"""Interpreters of repository models, and a server that has only the backend's folder."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

import psutil
import pytest
from serving import HOST, OwnProcess, Script, running_triton, wait_until
from worker_models import (
    SERVE,
    environment_in,
    execution_environment,
    none_runs,
    send_request,
    workers,
    workers_of,
    write_model,
)

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.server.files import find_server

# Tells where the model runs.
START = """
import os, pathlib, sys
seen = [sys.prefix, sys.executable, os.environ["PATH"].split(":")[0], sys.version.split()[0]]
(pathlib.Path(args["model_repository"]) / "seen").write_text("\\n".join(seen))
"""
ROOT = pathlib.Path(__file__).parents[3]
PYENV = pathlib.Path.home() / ".pyenv" / "versions"


def seen(repository, model):
    """Its prefix, interpreter, first folder of PATH, and version."""
    return (repository / model / "seen").read_text().splitlines()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return environment_in(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def archive(environment, tmp_path_factory):
    """The environment as venv-pack and conda-pack would pack it."""
    path = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(environment, ".")
    return path


def infer_at(port, model, *values):
    inputs = [{"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}]
    url = f"http://{HOST}:{port}/v2/models/{model}/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": inputs}).encode()) as response:
        return json.load(response)["outputs"][0]["data"]


def fails_to_load(repository):
    with running_triton(model_repository=repository) as triton, pytest.raises(PyTritonInvalidOperationError) as raised:
        triton.run()
    return str(raised.value)


def test_models_run_in_the_interpreter_of_the_process_that_serves_them(tmp_path):
    write_model(tmp_path, "model", start=START)
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
    assert seen(tmp_path, "model")[:2] == [sys.prefix, sys.executable]


def test_a_flag_names_an_interpreter(tmp_path, environment):
    write_model(tmp_path, "model", start=START)
    runtime = f"python,python-runtime={environment}/bin/python"
    with running_triton(model_repository=tmp_path, backend_config=[runtime]) as triton:
        triton.run()
        assert send_request(triton, "model", 1)[0] == 2
    assert seen(tmp_path, "model")[:2] == [str(environment), f"{environment}/bin/python"]


def test_a_missing_interpreter_is_named(tmp_path):
    write_model(tmp_path, "model")
    with (
        running_triton(model_repository=tmp_path, backend_config=["python,python-runtime=/no/python"]) as triton,
        pytest.raises(PyTritonInvalidOperationError, match="model 'model': /no/python is not a program"),
    ):
        triton.run()


def test_a_model_includes_a_folder_with_an_environment(tmp_path, environment):
    folder = write_model(
        tmp_path, "model", start=START, config=execution_environment("$$TRITON_MODEL_DIRECTORY/environment")
    ).parent
    (folder / "environment").symlink_to(environment)
    # The model's own environment wins over the flag.
    with running_triton(model_repository=tmp_path, backend_config=["python,python-runtime=/no/python"]) as triton:
        triton.run()
        assert send_request(triton, "model", 1)[0] == 2
    prefix = f"{folder}/environment"
    assert seen(tmp_path, "model")[:3] == [prefix, f"{prefix}/bin/python", f"{prefix}/bin"]


def test_an_environment_is_activated(tmp_path, environment):
    start = """
    import json, os, pathlib
    (pathlib.Path(args["model_repository"]) / "variables").write_text(json.dumps(dict(os.environ)))
    """
    config = execution_environment("$$TRITON_MODEL_DIRECTORY/packed.tar")
    folder = write_model(tmp_path, "model", start=start, config=config).parent
    activate = tmp_path / "activate"
    activate.write_text('export WHERE="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\n')
    with tarfile.open(folder / "packed.tar", "w") as tar:
        tar.add(environment, ".")
        tar.add(activate, "bin/activate")
    activate.unlink()
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        assert send_request(triton, "model", 1)[0] == 2
    variables = json.loads((folder / "variables").read_text())
    assert variables["PATH"].split(":")[0] == f"{variables['WHERE']}/bin"
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == f"{variables['WHERE']}/lib"


def test_models_share_an_unpacked_archive_which_is_removed_at_the_end(tmp_path, archive, own_home):
    names = ["first", "second", "third"]
    for name in names:
        write_model(tmp_path, name, start=START, config=execution_environment(archive))
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        (prefix,) = {seen(tmp_path, name)[0] for name in names}
        assert own_home in pathlib.Path(prefix).parents
        assert [send_request(triton, name, 1)[0] for name in names] == [2, 2, 2]
        unpacked = list(own_home.rglob("pyvenv.cfg"))
        assert len(unpacked) == 1
    assert list(own_home.iterdir()) == []


def test_conda_unpack_is_run_after_unpacking_an_archive(tmp_path, environment):
    folder = write_model(
        tmp_path, "model", start=START, config=execution_environment("$$TRITON_MODEL_DIRECTORY/packed.tar")
    ).parent
    unpack = "import pathlib, sys; (pathlib.Path(sys.prefix) / 'has_run').touch()"
    (tmp_path / "conda-unpack").write_text(unpack)
    (tmp_path / "conda-unpack").chmod(0o755)
    with tarfile.open(folder / "packed.tar", "w") as tar:
        tar.add(environment, ".")
        tar.add(tmp_path / "conda-unpack", "bin/conda-unpack")
    (tmp_path / "conda-unpack").unlink()
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        assert (pathlib.Path(seen(tmp_path, "model")[0]) / "has_run").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "model 'model': {path} does not exist"),
        (b"no archive", "model 'model': unpacking {path}: tar ended with exit status 2; the server's log has more"),
        ("empty", "/bin/python is not a program"),
    ],
)
def test_an_invalid_environment_fails_the_load(tmp_path, own_home, content, reason):
    path = tmp_path / "environment.tar"
    write_model(tmp_path / "models", "model", config=execution_environment(path))
    if content == "empty":
        tarfile.open(path, "w").close()
    elif content is not None:
        path.write_bytes(content)
    assert reason.format(path=path) in fails_to_load(tmp_path / "models")
    assert list(own_home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.13"])
def test_another_python_serves_a_model(tmp_path, version):
    interpreters = sorted(PYENV.glob(f"{version}.*/bin/python"))
    if not interpreters:
        pytest.skip(f"there is no Python {version}")
    environment = tmp_path / "environment"
    subprocess.run([interpreters[0], "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "numpy"], check=True)
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as tar:
        tar.add(environment, ".")
    shutil.rmtree(environment)
    write_model(tmp_path / "models", "other", start=START, config=execution_environment(tmp_path / "packed.tar.gz"))
    write_model(tmp_path / "models", "own", start=START)
    with running_triton(model_repository=tmp_path / "models") as triton:
        triton.run()
        assert send_request(triton, "other", 1)[0] == 2
        assert send_request(triton, "own", 1)[0] == 2
    assert seen(tmp_path / "models", "other")[3].startswith(f"{version}.")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("host", "guest"), [("3.10", "3.13"), ("3.13", "3.10")])
def test_one_python_hosts_a_model_on_another(tmp_path, host, guest):
    interpreters = [sorted(PYENV.glob(f"{version}.*/bin/python")) for version in (host, guest)]
    if not all(interpreters):
        pytest.skip(f"there is no Python {host}, or no {guest}")
    for folder, (interpreter, *_) in zip(("host", "guest"), interpreters, strict=True):
        subprocess.run([interpreter, "-m", "venv", tmp_path / folder], check=True)
    build = f"--config-settings=build-dir={tmp_path}/build"
    subprocess.run([tmp_path / "host/bin/pip", "install", "-q", build, ROOT], check=True)
    subprocess.run([tmp_path / "guest/bin/pip", "install", "-q", "numpy"], check=True)
    write_model(tmp_path / "models", "own", start=START)
    write_model(tmp_path / "models", "other", start=START, config=execution_environment(tmp_path / "guest"))
    with Script(tmp_path, SERVE, tmp_path / "models", python=tmp_path / "host/bin/python") as script:
        port = int(script.line())
        assert [infer_at(port, model, 1, 2)[:2] for model in ("own", "other")] == [[2, 4]] * 2
    versions = [seen(tmp_path / "models", model)[3] for model in ("own", "other")]
    assert [version.rpartition(".")[0] for version in versions] == [host, guest]


class PlainServer(OwnProcess):
    """The Triton server as it is, with our folder in its backends."""

    def __init__(self, folder, repository, **environment):
        files = find_server()
        shutil.copytree(files.backend.parent / "python", folder / "backends" / "python")
        with socket.create_server((HOST, 0)) as listener:
            self.port = listener.getsockname()[1]
        command = [files.executable, f"--model-repository={repository}", f"--backend-directory={folder / 'backends'}"]
        command += [f"--http-port={self.port}", "--allow-grpc=false", "--allow-metrics=false"]
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self._log = (folder / "log").open("w")
        self.process = psutil.Popen(
            command, env={"PATH": path, "TMPDIR": str(folder), **environment}, stdout=self._log, stderr=self._log
        )
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, timeout_s=30)
        assert self.process.poll() is None, (folder / "log").read_text()

    def is_ready(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{HOST}:{self.port}/v2/health/ready").status == 200
        return False

    def send_request(self, model, *values):
        return infer_at(self.port, model, *values)

    def _clean_up(self):
        self._log.close()


@pytest.fixture
def short_path():
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        yield pathlib.Path(folder)


def test_the_folder_alone_makes_a_server_serve_python_models(short_path, tmp_path):
    write_model(tmp_path, "model", start=START)
    with PlainServer(short_path, tmp_path) as server:
        assert server.send_request("model", 1, 2)[:2] == [2, 4]
        (worker,) = workers(server.process)
        assert str(short_path / "backends" / "python" / "pytriton") in worker.cmdline()[-1]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    assert "finalized model" in (short_path / "log").read_text()
    assert list(short_path.glob("pytriton-*")) == []


def test_files_of_a_killed_server_are_removed_by_the_next_one(short_path, tmp_path):
    write_model(tmp_path, "model")
    with PlainServer(short_path, tmp_path) as server:
        processes = [server.process, *server.process.children(recursive=True)]
        (left,) = short_path.glob("pytriton-*")
        server.process.kill()
        wait_until(lambda: none_runs(processes))
        assert left.exists()
    shutil.rmtree(short_path / "backends")
    with PlainServer(short_path, tmp_path) as server:
        assert server.send_request("model", 1)[0] == 2
        assert not left.exists()


def test_two_servers_keep_each_others_folders(short_path, tmp_path):
    write_model(tmp_path, "model")
    (short_path / "one").mkdir()
    (short_path / "two").mkdir()
    shared = {"TMPDIR": str(short_path)}
    with (
        PlainServer(short_path / "one", tmp_path, **shared) as one,
        PlainServer(short_path / "two", tmp_path, **shared) as two,
    ):
        assert len(list(short_path.glob("pytriton-*"))) == 2
        assert one.send_request("model", 1)[0] == two.send_request("model", 1)[0] == 2


def test_a_missing_configuration_is_completed(tmp_path):
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", x * 2)]) for x in inputs]
"""
    folder = write_model(tmp_path, "model", code=code).parent
    (folder / "config.pbtxt").unlink()
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        assert send_request(triton, "model", 1, 2) == [2, 4]
        assert len(workers_of(triton)) == 1  # the process that completes the configuration serves the instance
