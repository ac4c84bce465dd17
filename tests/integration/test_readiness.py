"""Readiness, from the first second of a server to the last: no request of clients that check it fails."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
import tritonclient.grpc
from probes import get
from serving import (
    HOST,
    Background,
    InferenceServerException,
    bind_floats,
    double,
    free_ports,
    json_floats,
    running_triton,
    server_of,
    wait_until,
)
from worker_models import write_model

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.gateway import GatewayConfig
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.model_config import ModelConfig
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
    """Checks readiness every few milliseconds, and keeps the results with their times."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.states = []
        self._ask, self._done = ask, threading.Event()
        self.start()

    def run(self):
        while not self._done.is_set():
            checked = time.monotonic()
            self.states.append((checked, self._ask()))
            time.sleep(0.002)

    def since(self, moment, until=float("inf")):
        """The results of the checks from one moment until another."""
        return [state for checked, state in self.states if moment <= checked < until]

    def has_returned_since(self, moment):
        """A condition: it was not ready, and is ready again."""

        def condition():
            states = self.since(moment)
            return False in states and True in states[states.index(False) :]

        return condition

    def wait_until_ready(self):
        """Waits until it is ready; returns the time of the first check."""
        return wait_until(lambda: next((checked for checked, state in self.states if state), None))

    def finish(self):
        self._done.set()
        self.join()


def over_http(port, models=()):
    """Checks readiness over HTTP; the result is an error if a ready server does not serve a model."""

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


def test_a_server_is_ready_while_it_serves_all_models_bound_at_the_start():
    http_port, grpc_port, metrics_port = free_ports(3)
    drain_s = 1
    triton = running_triton(http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port, drain_secs=drain_s)
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
            states = watch.since(killed)
            down = states.index(False)
            up = states.index(True, down)
            assert set(states) == {True, False}
            assert set(states[down:up]) == {False}
            assert set(states[up:]) == {True}

        stopping = time.monotonic()
    for watch in watches:
        watch.finish()
        states = watch.since(stopping)
        assert True not in states[states.index(False) :], "it stays unready"
        checked = [checked for checked, state in watch.states if checked >= stopping and state is False]
        assert checked[0] - stopping < drain_s / 2, "readiness ends at once, not after the drain"


def test_a_server_without_bound_models_is_ready_when_it_runs():
    with running_triton() as triton:
        assert not triton.is_ready()
        triton.run()
        assert triton.is_ready()
    assert not triton.is_ready()


def test_a_server_with_a_repository_is_ready_once_its_models_are_loaded(tmp_path):
    write_model(tmp_path / "models", "repeat", code=REPOSITORY_MODEL)
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
