"""Restricted environments: a program serves anyway, or reports at once what is missing."""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time

import numpy as np
import psutil
import pytest
from full_disk import full_disk
from serving import (
    HOST,
    Script,
    bind_floats,
    free_ports_environment,
    is_ready,
    request_json,
    running_triton,
    send_floats,
    server_of,
    servers,
    wait_until,
)

import pytriton
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonError

SERVE_ONCE = """
import sys
import numpy as np
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

class Double:
    @batch
    def __call__(self, x):
        return [x * 2]

if __name__ == "__main__":
    with Triton() as triton:
        for name, function in (("thread", Double()), ("process", ProcessInstance(Double))):
            triton.bind(name, function, [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
        triton.run()
        print(*{folder.parent for folder in [triton._session.workspace.path]})
        for name in ("thread", "process"):
            with ModelClient(f"localhost:{triton.config.http_port}", name) as client:
                print(client.infer_sample(np.float32([21]))["y"])
"""

PROMPT_S = 15


@batch
def double(x):
    return [x * 2]


class Environment:
    """Runs a script with a prefix on its command line, and other environment variables."""

    def __init__(self, folder, home):
        self.home = home
        self._script = folder / "script.py"
        self._script.write_text(SERVE_ONCE)

    def run(self, prefix="exec", **variables):
        environment = {**os.environ, **free_ports_environment(), "PYTRITON_HOME": None, "TMPDIR": str(self.home)}
        environment |= variables
        environment = {name: value for name, value in environment.items() if value is not None}
        command = f'{prefix} "$@"'
        done = subprocess.run(
            ["bash", "-c", command, "bash", sys.executable, str(self._script)],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert list(self.home.iterdir()) == []
        return done

    def serves(self, prefix="exec", **variables):
        """Runs the script, and returns the folder of its workspace."""
        done = self.run(prefix, **variables)
        assert done.returncode == 0, done.stderr
        folder, *rows = done.stdout.splitlines()
        assert rows == ["[42.]"] * 2
        return folder

    def fails(self, prefix, text):
        """Runs the script, which fails at once with a text."""
        start = time.monotonic()
        done = self.run(prefix)
        assert time.monotonic() - start < PROMPT_S
        assert done.returncode == 1
        assert text in done.stderr


@pytest.fixture
def home():
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        yield pathlib.Path(folder)


@pytest.fixture
def environment(tmp_path, home):
    return Environment(tmp_path, home)


def namespaces(*flags):
    """The prefix that runs a command in its own namespaces, if the system allows it."""
    command = ["unshare", *flags]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("the system does not allow such namespaces")
    return " ".join(command)


def test_without_a_home_folder_it_serves(environment):
    environment.serves(HOME=None)
    environment.serves(HOME="/nonexistent")


def test_with_a_read_only_temporary_folder_it_serves_from_another(environment):
    assert environment.serves(TMPDIR="/proc") != "/proc"


def test_with_a_too_long_temporary_path_it_serves_from_another(environment, tmp_path):
    long = tmp_path / ("x" * 150)
    long.mkdir()
    assert environment.serves(TMPDIR=str(long)) == "/tmp"
    assert list(long.iterdir()) == []


def test_in_a_temporary_folder_of_32_kilobytes_it_serves(environment, home):
    prefix = f"{namespaces('--mount')} bash -c 'mount -t tmpfs -o size=32k none {home} && exec \"$@\"' bash"
    assert environment.serves(prefix) == str(home)


def test_a_full_temporary_folder_is_reported(environment, home):
    prefix = f"{namespaces('--mount')} bash -c 'mount -t tmpfs -o size=8k none {home} && exec \"$@\"' bash"
    environment.fails(prefix, "No space left on device); free some space, or name another folder")


def test_as_another_user_it_serves(environment):
    environment.serves(namespaces("--user", "--map-user=12345", "--map-group=12345"))


def test_as_the_first_process_of_a_namespace_it_serves(environment):
    environment.serves(namespaces("--pid", "--fork", "--mount-proc"))


def test_in_a_deleted_working_folder_it_serves(environment):
    environment.serves('cd "$(mktemp -d)" && rmdir "$PWD" && exec')


def test_with_all_warnings_as_errors_it_serves_without_any(environment):
    done = environment.run(PYTHONWARNINGS="error", PYTHONDEVMODE="1", PYTHONWARNDEFAULTENCODING="1")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_with_a_low_priority_it_serves(environment):
    environment.serves("exec nice")


def test_with_a_low_soft_limit_on_open_files_it_serves(environment):
    environment.serves("ulimit -S -n 64; exec")


def test_with_a_limit_of_128_open_files_it_serves(environment):
    environment.serves("ulimit -n 128; exec")


def test_with_fewer_open_files_it_reports_what_it_needs(environment):
    environment.fails("ulimit -n 64; exec", "This process may open 64 files (the hard limit of `ulimit -n`)")


def test_with_a_limit_on_the_size_of_files_it_names_the_limit(environment):
    environment.fails("ulimit -f 100000; exec", "This process may write files of at most 100000 KiB (`ulimit -f`)")


def test_with_a_limit_on_processes_it_names_the_limit(environment, home, tmp_path):
    home.chmod(0o777)
    tmp_path.chmod(0o777)
    rights = "+dac_override,+dac_read_search"  # for the interpreter, which may be in root's home folder
    user = f"setpriv --reuid=23456 --regid=23456 --clear-groups --inh-caps={rights} --ambient-caps={rights}"
    if shutil.which("setpriv") is None or subprocess.run([*user.split(), "true"], capture_output=True).returncode:
        pytest.skip("the limit does not hold for root, and the system does not allow to become another user")
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in pathlib.Path(pytriton.__file__).parents):
        pytest.skip("another user cannot reach the package")
    environment.fails(
        f"exec {user} prlimit --nproc=25", "raise the limit on the processes and threads of this user (`ulimit -u`)"
    )


@pytest.mark.parametrize("size_kib", [500_000, 1_500_000])
def test_with_too_little_address_space_it_names_the_limit(environment, size_kib):
    text = f"The address space of this process is limited to {size_kib // 1024} MiB (`ulimit -v`)"
    environment.fails(f"ulimit -v {size_kib}; exec", text)


def shared_memory_that_is_dumped(process):
    """The mappings of models' memory that the kernel would write to a core file when the process crashes."""
    mapping, dumped = "", []
    for line in pathlib.Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        if "memfd:pytriton (" in line:
            mapping = line
        elif mapping and line.startswith("VmFlags"):
            if "dd" not in line.split():
                dumped.append(mapping)
            mapping = ""
    return dumped


def test_a_core_file_does_not_contain_shared_memory():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]

        for process in (psutil.Process(), server_of(triton)):
            assert "memfd:pytriton (" in pathlib.Path(f"/proc/{process.pid}/maps").read_text()
            assert shared_memory_that_is_dumped(process) == []


def test_the_server_takes_more_connections_than_the_soft_limit_on_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        triton = running_triton()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with triton:
            bind_floats(triton, "double", double)
            triton.run()
            connections = [socket.create_connection((HOST, triton.config.http_port)) for _ in range(700)]
            try:
                assert send_floats(triton, "double", [1]) == [2]
            finally:
                for connection in connections:
                    connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_out_of_open_files_serves_its_connections_and_recovers():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        with ModelClient(f"{HOST}:{triton.config.http_port}", "double") as client:
            assert client.infer_batch(np.float32([[1]]))["y"] == [[2]]
            server = server_of(triton)
            limit = server.num_fds() + 20
            server.rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
            connections = [socket.create_connection((HOST, triton.config.http_port)) for _ in range(100)]
            wait_until(lambda: server.num_fds() == limit)

            for number in range(100):
                assert client.infer_batch(np.float32([[number]]))["y"] == [[2 * number]]
            for connection in connections:
                connection.close()
            wait_until(lambda: server.num_fds() < limit)
            assert send_floats(triton, "double", [3]) == [6]
            assert server_of(triton) == server


EXHAUSTED = """
import os, sys, threading
import numpy as np
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonError
from pytriton.model_config import Tensor
from pytriton.triton import Triton

@batch
def double(x):
    return [x * 2]

def bind(triton, name):
    triton.bind(name, double, [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])

with Triton() as triton:
    bind(triton, "double")
    triton.run()
    with ModelClient(f"localhost:{triton.config.http_port}", "double") as client:
        print(client.infer_sample(np.float32([1]))["y"])
        files = []
        try:
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            print(len(files) > 50)
        for number in range(100):
            assert client.infer_sample(np.float32([number]))["y"] == 2 * number
        try:
            bind(triton, "late")
        except (PyTritonError, OSError) as error:
            print("refused", type(error).__name__, error)
        for file in files:
            os.close(file)
        bind(triton, "late")
        with ModelClient(f"localhost:{triton.config.http_port}", "late") as late:
            print(client.infer_sample(np.float32([2]))["y"], late.infer_sample(np.float32([3]))["y"])
"""


def test_a_program_out_of_open_files_keeps_serving_and_recovers(tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))" + EXHAUSTED
    with Script(tmp_path, code) as script:
        status = script.wait()
        lines = script.process.stdout.read().splitlines()
        assert status == 0, script.stderr
        assert lines[:2] == ["[2.]", "True"]
        assert lines[2].startswith("refused") and "Too many open files" in lines[2]
        assert lines[3] == "[4.] [6.]"
        assert script.workspaces() == []


def test_a_server_is_restarted_while_the_disk_is_full():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        with full_disk():
            old = server_of(triton)
            old.kill()
            wait_until(lambda: [server for server in servers() if server != old])
            wait_until(lambda: is_ready(triton))
            assert send_floats(triton, "double", [1]) == [2]
            with pytest.raises(PyTritonError, match="No space left on device"):
                bind_floats(triton, "late", double)
        assert request_json(triton, "GET", "/v2/models/late")[0] != 200
