"""Lifecycle policies: when the server starts and how it gets its models, also with Vertex AI."""

from __future__ import annotations

import http.client
import json

import pytest
from serving import (
    HOST,
    bind_floats,
    double,
    free_config,
    send_floats,
    server_of,
    servers,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import ModelConfig
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import Triton, TritonLifecyclePolicy

triple = batch(lambda x: [x * 3])


@pytest.mark.parametrize("on_startup", [True, False])
@pytest.mark.parametrize("local_store", [True, False])
def test_models_are_served_with_every_policy_whenever_they_are_bound(on_startup, local_store):
    policy = TritonLifecyclePolicy(launch_triton_on_startup=on_startup, local_model_store=local_store)
    with Triton(config=free_config(), triton_lifecycle_policy=policy) as triton:
        assert triton.is_alive() == on_startup
        bind_floats(triton, "double", double)
        triton.run()
        bind_floats(triton, "triple", triple)
        assert [send_floats(triton, each, [1]) for each in ("double", "triple")] == [[2], [3]]

        bind_floats(triton, "double", triple)
        assert send_floats(triton, "double", [1]) == [3]


def test_a_server_with_a_local_store_loads_the_models_as_it_starts():
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
    for _ in range(2):
        triton = Triton(config=free_config(), triton_lifecycle_policy=policy)
        with triton:
            bind_floats(triton, "double", double)
            for _ in range(2):
                triton.run()
                assert "--load-model=double" in server_of(triton).cmdline()
                assert send_floats(triton, "double", [1]) == [2]
                triton.stop()


def test_a_failed_load_at_the_start_is_reported():
    def broken(requests):
        raise ValueError("the weights are missing")

    warmup = ModelWarmup("one", batch_size=1, count=1, inputs={"x": WarmupInput("float32", (1,), zero_data=True)})
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
    triton = Triton(config=free_config(), triton_lifecycle_policy=policy)
    bind_floats(triton, "broken", broken, config=ModelConfig(model_warmup=[warmup]))

    with pytest.raises(PyTritonRuntimeError, match="the weights are missing"):
        triton.run()
    assert not triton.is_alive()
    assert not servers()


@pytest.fixture
def vertex_ai(monkeypatch):
    """The environment of a container that Vertex AI runs."""
    for name, value in {
        "AIP_MODE": "PREDICTION",
        "AIP_HEALTH_ROUTE": "/health",
        "AIP_PREDICT_ROUTE": "/predict",
    }.items():
        monkeypatch.setenv(name, value)


def send_request(port, method, path, body=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def predict(port, values):
    row = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    status, content = send_request(port, "POST", "/predict", {"inputs": [row]})
    assert status == 200, content
    return json.loads(content)["outputs"][0]["data"]


def test_vertex_ai_requests_go_to_the_only_model(vertex_ai):
    with Triton(config=free_config(vertex_ai_port=0)) as triton:
        assert not triton.is_alive()
        bind_floats(triton, "double", double)
        triton.run()

        assert send_request(triton.config.vertex_ai_port, "GET", "/health")[0] == 200
        assert predict(triton.config.vertex_ai_port, [1, 2]) == [2, 4]
        assert send_floats(triton, "double", [3]) == [6]
        assert triton.config.http_address == HOST


def test_vertex_ai_requests_go_to_the_default_model_of_several(vertex_ai):
    config = free_config(vertex_ai_port=0, vertex_ai_default_model="triple")
    with Triton(config=config) as triton:
        bind_floats(triton, "double", double)
        bind_floats(triton, "triple", triple)
        triton.run()

        assert predict(triton.config.vertex_ai_port, [1]) == [3]


def test_vertex_ai_may_be_switched_off_in_its_container(vertex_ai):
    with Triton(config=free_config(allow_vertex_ai=False)) as triton:
        assert triton.is_alive()
        bind_floats(triton, "double", double)
        triton.run()

        assert send_floats(triton, "double", [1]) == [2]
