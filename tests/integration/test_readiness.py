"""Readiness, from the first second of a server to the last: whoever heeds it has no request fail."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
import tritonclient.grpc
from serving import (
    HOST,
    Background,
    InferenceServerException,
    Script,
    bind_floats,
    free_ports,
    json_floats,
    running_triton,
    server_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.gateway import GatewayConfig
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.model_config import ModelConfig
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton, TritonLifecyclePolicy

cloudpickle.register_pickle_by_value(sys.modules[__name__])

double = batch(lambda x: [x * 2])
LATER = TritonLifecyclePolicy(launch_triton_on_startup=False)


def creates_double():
    time.sleep(0.3)  # as for loading weights
    return batch(lambda x: [x * 2])


def warmed_up_slowly(requests):
    if not requests[0]["x"].any():  # the warm-up
        time.sleep(0.3)
    return [{"y": request["x"] * 2} for request in requests]


def fails(requests):
    raise ValueError("no such luck")


def slow_to_load():
    """Settings of a model that takes a while to load."""
    zeros = WarmupInput(np.float32, (1,), zero_data=True)
    return ModelConfig(model_warmup=[ModelWarmup("zeros", 1, {"x": zeros}, 1)])


def get(port, path, timeout_s=10):
    """The status of a GET request; None if there is no server."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def infer(port, model):
    """Sends 1 to a model that doubles: returns the status, None if there is no server, and the response."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [json_floats([1])]}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException):
        return None, None
    finally:
        connection.close()


def is_served(port, model):
    """Whether a model's response is right."""
    status, reply = infer(port, model)
    return status == 200 and reply["outputs"][0]["data"] == [2]


class Watch(threading.Thread):
    """Asks for the readiness every few milliseconds, and keeps what was said and when it was asked."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.answers = []
        self._ask, self._done = ask, threading.Event()
        self.start()

    def run(self):
        while not self._done.is_set():
            asked = time.monotonic()
            self.answers.append((asked, self._ask()))
            time.sleep(0.002)

    def since(self, moment, until=float("inf")):
        """The answers to what was asked from one moment on, until another."""
        return [answer for asked, answer in self.answers if moment <= asked < until]

    def has_returned_since(self, moment):
        """A condition: it was not ready, and is ready again."""

        def condition():
            answers = self.since(moment)
            return False in answers and True in answers[answers.index(False) :]

        return condition

    def wait_until_ready(self):
        """Waits until it says so; returns when it was first asked."""
        return wait_until(lambda: next((asked for asked, answer in self.answers if answer), None))

    def finish(self):
        self._done.set()
        self.join()


def over_http(port, models=()):
    """A question for the readiness over HTTP; an error is the answer if a ready server does not serve a model."""

    def ask():
        if get(port, "/v2/health/ready") != 200:
            return False
        for model in models:
            status, reply = infer(port, model)
            if status is None or reply == {"error": "the server is shutting down"}:
                return False  # it has ended in between
            if status != 200 or reply["outputs"][0]["data"] != [2]:
                return f"{model}: {status} {reply}"
        return True

    return ask


def over_grpc(port):
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{port}")

    def ask():
        try:
            return client.is_server_ready(client_timeout=5)
        except InferenceServerException:
            return False

    return ask


def test_a_server_is_ready_exactly_while_it_serves_all_that_was_bound_at_the_start():
    http_port, grpc_port, metrics_port = free_ports(3)
    triton = running_triton(http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port, drain_secs=1)
    models = ("slow", "process", "plain")
    watches = [Watch(over_http(http_port, models)), Watch(over_grpc(grpc_port))]
    with triton:
        bind_floats(triton, "slow", warmed_up_slowly, config=slow_to_load())
        bind_floats(triton, "process", ProcessInstance(creates_double))
        bind_floats(triton, "plain", double)
        called = time.monotonic()
        triton.run()
        first = [watch.wait_until_ready() for watch in watches]
        assert min(first) > called - 0.01

        # Whatever is bound later, it stays ready.
        served = time.monotonic()
        bind_floats(triton, "later", warmed_up_slowly, config=slow_to_load())
        bind_floats(triton, "plain", batch(lambda x: [x + x]))
        bind_floats(triton, "plain", double, model_version=2)
        with pytest.raises(PyTritonInvalidOperationError):
            bind_floats(triton, "broken", fails, config=slow_to_load())
        triton.unbind("later")
        killed = time.monotonic()
        for watch in watches:
            assert set(watch.since(served, killed - 0.02)) == {True}

        # It is started again, and ready once it has its models.
        server_of(triton).kill()
        for watch in watches:
            wait_until(watch.has_returned_since(killed))
            answers = watch.since(killed)
            down = answers.index(False)
            up = answers.index(True, down)
            assert set(answers) == {True, False}
            assert set(answers[down:up]) == {False}
            assert set(answers[up:]) == {True}

        stopping = time.monotonic()
    for watch in watches:
        watch.finish()
        answers = watch.since(stopping)
        assert True not in answers[answers.index(False) :], "it is not ready for good"
        asked = [asked for asked, answer in watch.answers if asked >= stopping and answer is False]
        assert asked[0] - stopping < 0.2, "it says so at once, not after the drain"


def test_a_server_with_nothing_bound_is_ready_when_it_runs():
    with running_triton() as triton:
        assert not triton.is_ready()
        triton.run()
        assert triton.is_ready()
    assert not triton.is_ready()


def test_a_server_with_a_repository_is_ready_once_its_models_are_loaded(tmp_path):
    folder = tmp_path / "models" / "repeat"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(REPOSITORY_MODEL)
    (folder / "config.pbtxt").write_text(REPOSITORY_CONFIG)
    (port,) = free_ports(1)
    watch = Watch(over_http(port, ("repeat",)))
    with running_triton(http_port=port, model_repository=str(tmp_path / "models")) as triton:
        triton.connect()
        assert not triton.is_ready(), "connect loads bound models alone"
        triton.run()
        watch.wait_until_ready()
        assert triton.is_ready()
    watch.finish()
    assert set(watch.since(0)) == {True, False}


REPOSITORY_MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(0.3)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]) for x in inputs]
"""

REPOSITORY_CONFIG = """
backend: "python"
max_batch_size: 4
input [{ name: "x", data_type: TYPE_FP32, dims: [-1] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [-1] }]
"""


def test_models_of_other_processes_do_not_change_the_readiness_of_a_server():
    with running_triton() as triton:
        triton.run()
        watch = Watch(over_http(triton.config.http_port))
        watch.wait_until_ready()
        with RemoteTriton(f"{HOST}:{triton.config.http_port}", access_token=triton.get_access_token()) as remote:
            bind_floats(remote, "slow", warmed_up_slowly, config=slow_to_load())
            with pytest.raises(PyTritonInvalidOperationError):
                bind_floats(remote, "broken", fails, config=slow_to_load())
        watch.finish()
    assert set(watch.since(0)) == {True}


# The gateway.


@pytest.fixture
def behind_gateway():
    """A server behind a gateway, both of which drain, in a thread that serves; the ports of both."""
    ports = free_ports(2)
    triton = running_triton(http_port=ports[0], drain_secs=1)
    bind_floats(triton, "plain", double)
    serving = Background(lambda: triton.serve(gateway=GatewayConfig(port=ports[1])))
    wait_until(lambda: get(ports[1], "/health/ready") == 200)
    yield triton, *ports
    triton.stop()
    serving.finish()


def test_a_gateway_is_ready_only_while_its_server_is(behind_gateway):
    triton, port, gateway_port = behind_gateway
    triton._session.server._gate.drain()  # as another thread that stops it
    assert get(port, "/v2/health/ready") == 400
    assert get(gateway_port, "/health/ready") == get(gateway_port, "/v2/health/ready") == 503
    assert get(gateway_port, "/health/live") == 200


def test_a_gateway_serves_requests_while_it_drains(behind_gateway):
    triton, port, gateway_port = behind_gateway
    began = time.monotonic()
    stopping = Background(triton.stop)
    wait_until(lambda: get(gateway_port, "/health/ready") == 503)
    client = triton.client("plain")
    while time.monotonic() - began < 0.8:
        assert is_served(gateway_port, "plain")
        assert is_served(port, "plain")
        assert client.infer_sample(np.ones(1, np.float32))["y"] == 2
        assert get(gateway_port, "/health/ready") == 503
        assert get(port, "/v2/health/ready") == 400
    stopping.finish()
    assert get(gateway_port, "/health/live") is None
    assert stopping.ended - began >= 1


# Rolling restarts.

REPLICA = """
import sys
import time
import numpy as np
from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, gateway_port = int(sys.argv[1]), int(sys.argv[2])
floats = lambda name: [Tensor(name=name, shape=(-1,), dtype=np.float32)]
config = TritonConfig(http_port=http_port, grpc_port=0, metrics_port=0, drain_secs=1)
with Triton(config=config) as triton:
    for model in ("plain", "other"):
        time.sleep(0.1)  # as for loading weights
        triton.bind(model, batch(lambda x: [x * 2]), floats("x"), floats("y"), config=ModelConfig(max_batch_size=8))
    triton.serve(gateway=GatewayConfig(port=gateway_port) if gateway_port else None)
"""


class Balancer:
    """Sends requests to servers that are ready, as a Service of Kubernetes does.

    Args:
        ports: The servers' ports.
    """

    def __init__(self, ports):
        self.sent = 0
        self.failures = []
        self._ready = dict.fromkeys(ports, False)
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = []

    def start(self, senders):
        self._run(self._probe)
        wait_until(lambda: all(self._ready.values()), timeout_s=30)
        for _ in range(senders):
            self._run(self._send)

    def is_ready(self, port):
        return self._ready[port]

    def stop(self):
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _run(self, target):
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _probe(self):
        while not self._done.wait(0.05):
            for port in self._ready:
                self._ready[port] = get(port, "/v2/health/ready", timeout_s=1) == 200

    def _send(self):
        connections = {}
        model = "plain"
        while not self._done.is_set():
            ready = [port for port, is_ready in self._ready.items() if is_ready]
            for port in connections.keys() - ready:
                connections.pop(port).close()
            if not ready:
                self.failures.append((time.monotonic(), None, "no server is ready"))
                time.sleep(0.01)
                continue
            port = ready[next(self._turns) % len(ready)]
            model = "other" if model == "plain" else "plain"
            failure = self._request(connections, port, model)
            with self._lock:
                self.sent += 1
            if failure is not None:
                self.failures.append((time.monotonic(), port, failure))
                connections.pop(port).close()

    @staticmethod
    def _request(connections, port, model):
        if port not in connections:
            connections[port] = http.client.HTTPConnection(HOST, port, timeout=20)
        try:
            body = json.dumps({"inputs": [json_floats([1])]})
            connections[port].request("POST", f"/v2/models/{model}/infer", body)
            response = connections[port].getresponse()
            reply = response.read()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        if response.status != 200 or json.loads(reply)["outputs"][0]["data"] != [2]:
            return f"{response.status} {reply[:200]!r}"
        return None


@pytest.mark.parametrize(
    ("rounds", "with_gateway"),
    [
        pytest.param(1, False, id="servers"),
        pytest.param(10, False, id="servers-long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(10, True, id="gateways-long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_a_rolling_restart_fails_no_request_of_clients_that_heed_readiness(rounds, with_gateway, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    arguments = []
    for folder in folders:
        folder.mkdir()
        http_port, gateway_port = free_ports(2)
        arguments.append((http_port, gateway_port if with_gateway else 0))
    ports = [gateway_port or http_port for http_port, gateway_port in arguments]
    replicas = [Script(folder, REPLICA, *each) for folder, each in zip(folders, arguments, strict=True)]
    balancer = Balancer(ports)
    restarts = 0
    try:
        balancer.start(senders=4)
        for _ in range(rounds):
            for number, port in enumerate(ports):
                replicas[number].signal(signal.SIGTERM)
                assert replicas[number].wait() == 0, replicas[number].stderr
                replicas[number].__exit__()
                replicas[number] = Script(folders[number], REPLICA, *arguments[number])
                wait_until(lambda: balancer.is_ready(port), timeout_s=30)  # noqa: B023
                restarts += 1
    finally:
        balancer.stop()
        for replica in replicas:
            replica.__exit__()
    print(f"{balancer.sent} requests over {restarts} restarts, {len(balancer.failures)} of which failed")
    assert balancer.failures == []
    assert balancer.sent > 100 * restarts
