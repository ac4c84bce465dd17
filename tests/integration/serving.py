"""Helpers of the integration tests: servers on free ports, clients of both protocols, and `wait_until`."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException as InferenceServerException
from tritonclient.utils import np_to_triton_dtype

import pytriton
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.server.capabilities import flags_of
from pytriton.server.files import find_server, own_files
from pytriton.server.version import version_of
from pytriton.triton import Triton, TritonConfig, TritonLifecyclePolicy

HOST = "127.0.0.1"
LATER = TritonLifecyclePolicy(launch_triton_on_startup=False)

double = batch(lambda x: [x * 2])
FREE_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
FLOATS_IN = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
FLOATS_OUT = [Tensor(name="y", shape=(-1,), dtype=np.float32)]
NO_BATCHING = ModelConfig(batching=False)


@functools.cache
def server_flags():
    """The flags of the server that the tests run."""
    return flags_of(find_server())


def client_shm():
    """The setting that lets clients register shared memory, where that is off by default."""
    return {"allow_client_shm": True} if "allow-client-shm" in server_flags() else {}


def free_config(**settings):
    """Settings of a server on free ports."""
    return TritonConfig(**{**FREE_PORTS, **client_shm(), **settings})


def free_ports(count):
    """Ports that nothing listens at, for programs that cannot say which they got."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def free_ports_environment():
    """Settings of a server on free ports, for scripts that are run as a user would write them."""
    settings = {**dict.fromkeys(FREE_PORTS, "0"), **dict.fromkeys(client_shm(), "true")}
    return {f"PYTRITON_TRITON_CONFIG_{name.upper()}": value for name, value in settings.items()}


@contextlib.contextmanager
def taken_port():
    """A port at which something listens, on all addresses."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield taken.getsockname()[1]


def needs_flags(*names):
    """Skips tests of settings that the server does not have."""
    missing = [name for name in names if server_flags() and name not in server_flags()]
    return pytest.mark.skipif(bool(missing), reason=f"the server has no {', '.join(missing)}")


def needs_bundled_server(test):
    """Skips a test on a server of another version than the bundled one."""
    bundled = version_of(own_files(list(pytriton.__path__)).root)
    return pytest.mark.skipif(version_of(find_server().root) != bundled, reason="the bundled server's own")(test)


def bind_floats(triton, name, infer_func, **arguments):
    """Binds a model with one input ``x`` and one output ``y``, float32 vectors."""
    triton.bind(model_name=name, infer_func=infer_func, inputs=FLOATS_IN, outputs=FLOATS_OUT, **arguments)


class Client:
    """Sends arrays and receives arrays, over HTTP or gRPC, in the same words.

    `infer` is for one thread at a time over HTTP, unless `concurrency` says otherwise.
    """

    def __init__(self, protocol, triton, concurrency=1):
        self._module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
        if protocol == "http":
            url = f"{HOST}:{triton.config.http_port}"
            self.raw = tritonclient.http.InferenceServerClient(url, concurrency=concurrency, network_timeout=300)
        else:
            self.raw = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")

    def result(self, model, inputs, *, outputs=None, datatypes=None, **options):
        """Sends a request and returns the client library's own result."""
        tensors = []
        for name, array in inputs.items():
            datatype = (datatypes or {}).get(name) or np_to_triton_dtype(array.dtype)
            tensor = self._module.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        wanted = None if outputs is None else [self._module.InferRequestedOutput(name) for name in outputs]
        return self.raw.infer(model, tensors, outputs=wanted, **options)

    def infer(self, model, inputs, **options):
        """Sends a request and returns its outputs by name."""
        result = self.result(model, inputs, **options)
        response = result.get_response()
        names = (
            [output["name"] for output in response.get("outputs", [])]
            if isinstance(response, dict)
            else [output.name for output in response.outputs]
        )
        return {name: result.as_numpy(name) for name in names}

    def close(self):
        self.raw.close()


@contextlib.contextmanager
def client_of(triton, protocol="http", concurrency=1):
    client = Client(protocol, triton, concurrency)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def connection_to(triton, timeout_s=60):
    """A plain connection to the server's HTTP port."""
    connection = http.client.HTTPConnection(HOST, triton.config.http_port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def token_of(triton):
    """The header that opens the restricted endpoints over HTTP."""
    return {"triton-access-token": triton.get_access_token()}


def request_json(triton, method, path, body=None, headers=None):
    """Sends a plain HTTP request to the server: returns the status and the decoded response."""
    with connection_to(triton) as connection:
        data = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None


def infer_json(triton, model, inputs, *, version=None, **fields):
    """Sends a request as JSON: returns the status and the decoded response."""
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    return request_json(triton, "POST", path, {"inputs": inputs, **fields})


def json_floats(values, name="x"):
    """One row of float32 as an input in JSON."""
    return {"name": name, "shape": [1, len(values)], "datatype": "FP32", "data": values}


def send_floats(triton, model, values, **fields):
    """Sends one row of float32 as JSON and returns the row ``y`` of the response, or its error."""
    status, reply = infer_json(triton, model, [json_floats(values)], **fields)
    return reply["outputs"][0]["data"] if status == 200 else reply["error"]


def statistics_of(triton, model, version=1):
    path = f"/v2/models/{model}/versions/{version}/stats"
    _, reply = request_json(triton, "GET", path, headers=token_of(triton))
    return reply["model_stats"][0]


def counted_statistics_of(triton, model, requests, version=1):
    """A model's statistics once they count so many requests: Triton counts a request after it has sent the response."""

    def counted():
        statistics = statistics_of(triton, model, version)
        parts = statistics["inference_stats"]
        executed = sum(each["batch_size"] * each["compute_infer"]["count"] for each in statistics["batch_stats"])
        is_counted = parts["success"]["count"] + parts["fail"]["count"] >= requests
        return is_counted and executed >= statistics["inference_count"] and statistics

    return wait_until(counted, what=f"a count of {requests} requests")


def scrape(triton):
    """What the metrics endpoint shows, as text."""
    with urllib.request.urlopen(f"http://{HOST}:{triton.config.metrics_port}/metrics", timeout=10) as response:
        return response.read().decode()


def samples_of(triton, name, **labels):
    """The values of a metric that have these labels, by their other labels' values."""
    return {
        tuple(value for key, value in sorted(sample.labels.items()) if key not in labels): sample.value
        for family in text_string_to_metric_families(scrape(triton))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def metrics_of(triton, model):
    """A model's metrics by name, summed over its versions."""
    metrics = collections.Counter()
    for line in scrape(triton).splitlines():
        match = re.fullmatch(r'(\w+)\{.*\bmodel="([^"]*)".*\} (\S+)', line)
        if match and match[2] == model:
            metrics[match[1]] += float(match[3])
    return metrics


def at_once(count, send):
    """Calls ``send(number)`` in ``count`` threads at the same time and returns what they returned, in order."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(send, range(count)))


class Background(threading.Thread):
    """Calls a function in a thread, and keeps what it returned or raised and when."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self._function = function
        self.result = self.error = self.ended = None
        self.start()

    def run(self):
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic()

    def finish(self, timeout_s=20):
        self.join(timeout_s)
        assert not self.is_alive(), "it still waits"
        return self


class Load(threading.Thread):
    """Sends the numbers from 1 on, one after the other, until it is ``done``, and keeps what came of each."""

    def __init__(self, send, done):
        super().__init__(daemon=True)
        self.responses = []
        self._send, self._done = send, done
        self.start()

    def run(self):
        number = 0
        while not self._done.is_set():
            number += 1
            self.responses.append((number, self._send(number)))


def held_model(triton, name, **arguments):
    """Binds a model whose callable waits in its first call; returns the events 'it is called' and 'it may continue'."""
    entered, gate = threading.Event(), threading.Event()

    def hold(requests):
        if not entered.is_set():
            entered.set()
            assert gate.wait(60)
        return requests

    bind_floats(triton, name, hold, **arguments)
    return entered, gate


def wait_until(condition, timeout_s=10.0, what="the condition"):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} does not hold after {timeout_s} s"
        time.sleep(0.005)


def is_ready(triton):
    """Whether the server is running and says that it is ready."""
    try:
        return request_json(triton, "GET", "/v2/health/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def server_of(triton):
    """The process of a running server, or of one that is just being started."""
    ports = triton.config
    flag = f"--http-port={ports.http_port}" if ports.allow_http is not False else f"--grpc-port={ports.grpc_port}"

    def find():
        with contextlib.suppress(psutil.NoSuchProcess):
            return [server for server in servers() if flag in server.cmdline()]

    (server,) = wait_until(find, what="a running server")
    return server


def servers(pid=None):
    """The running servers of a process; this one by default."""
    found = []
    for child in psutil.Process(pid or os.getpid()).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "tritonserver":
                found.append(child)
    return found


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class OwnProcess:
    """A program in its own process, which is killed at the end of the ``with`` block if it still runs."""

    process: subprocess.Popen

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._clean_up()

    def _clean_up(self):
        """Removes what the process used."""


class Script(OwnProcess):
    """A user's script, running in its own process and folder.

    Args:
        folder: For the script and its workspaces.
        code: The script.
        python: The interpreter.
    """

    def __init__(self, folder, code, *arguments, python=sys.executable):
        self.folder = folder
        self._home = tempfile.TemporaryDirectory(prefix="pt-")  # a short path, for sockets
        self.home = pathlib.Path(self._home.name)
        self.path = folder / "script.py"
        self.path.write_text(code)
        self.process = subprocess.Popen(
            [python, str(self.path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"),
            text=True,
            cwd=folder,
            env={
                **os.environ,
                **free_ports_environment(),
                "PYTRITON_HOME": str(self.home),
                "PYTHONFAULTHANDLER": "1",  # says where it crashed, if it does
            },
        )

    def _clean_up(self):
        self._home.cleanup()

    @property
    def pid(self):
        return self.process.pid

    @property
    def stderr(self):
        return (self.folder / "stderr").read_text()

    def line(self):
        """The next line that it prints."""
        line = self.process.stdout.readline()
        assert line, f"the script ended:\n{self.stderr}"
        return line.rstrip("\n")

    def resume(self):
        """Sends the line for which it waits."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number):
        self.process.send_signal(number)

    def wait_until_it_serves(self):
        """Waits until `Triton.serve` listens to signals: it says where its models are only then."""
        wait_until(lambda: "Metrics: " in self.stderr)

    def wait(self, timeout_s=30):
        """Waits for its end and returns its exit status."""
        return self.process.wait(timeout_s)

    def workspaces(self):
        return sorted(path.name for path in self.home.glob("*"))


def shared_memory():
    """Names in /dev/shm, but for the semaphores of `multiprocessing`, which other tests use meanwhile."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


def running_triton(**settings):
    """A server on free ports, to be stopped by the caller (or as a context manager)."""
    return Triton(config=free_config(**settings))


def echoes(triton):
    """Whether a request succeeds; a server that was just hit may exit a little later."""
    try:
        return send_floats(triton, "echo", [3]) == [3]
    except (OSError, http.client.HTTPException):
        return False


def check_message(message, parts):
    """It is one sentence that has the setting, the value and the remedy, in this order."""
    assert re.search(".*?".join(map(re.escape, parts)), message), message
    assert re.fullmatch(r"[^\n]*\.", message), message
    assert not re.search(r"[.!?] [A-Z]", message), message
