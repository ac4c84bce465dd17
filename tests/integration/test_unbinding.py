"""The models that a `Triton` describes, and their removal."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import psutil
import pytest
from serving import (
    HOST,
    Background,
    Load,
    bind_floats,
    double,
    held_model,
    infer_json,
    request_json,
    running_triton,
    send_floats,
    server_of,
    token_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton

triple = batch(lambda x: [x * 3])


def index_of(triton):
    """The models that the server's repository lists, with their states."""
    _, models = request_json(triton, "POST", "/v2/repository/index", {}, token_of(triton))
    return {(each["name"], each["version"]): each.get("state") for each in models}


def test_models_are_described_in_the_order_of_binding():
    triton = running_triton()
    bind_floats(triton, "one", double, config=ModelConfig(max_batch_size=7))
    bind_floats(triton, "two", [triple, triple], model_version=3)

    one, two = triton.models
    assert (one.name, one.version, one.instances, one.config.max_batch_size) == ("one", 1, 1, 7)
    assert (two.name, two.version, two.instances) == ("two", 3, 2)
    assert [(tensor.name, tensor.shape) for tensor in (*one.inputs, *one.outputs)] == [("x", (-1,)), ("y", (-1,))]
    assert str(two) == "two v3: x FP32 (-1,) -> y FP32 (-1,) (2 instances)"


def test_descriptions_cannot_change_what_is_bound():
    triton = running_triton()
    bind_floats(triton, "one", double)

    triton.models[0].config.max_batch_size = 99
    with pytest.raises(dataclasses.FrozenInstanceError):
        triton.models[0].name = "other"
    assert triton.models[0].config.max_batch_size == 4


def test_its_representation_names_state_version_addresses_and_models():
    triton = running_triton()
    bind_floats(triton, "double", double)
    model = "  double v1: x FP32 (-1,) -> y FP32 (-1,)"
    assert str(triton).splitlines() == ["Triton: not started", model]

    with triton:
        triton.run()
        http, grpc = triton.config.http_port, triton.config.grpc_port
        assert str(triton).splitlines() == [
            f"Triton: ready, Triton {triton.server_version}",
            f"  http://{HOST}:{http}, grpc://{HOST}:{grpc}",
            model,
        ]
    assert repr(triton).splitlines() == ["Triton: not started", model]


def test_an_unbound_model_is_unloaded_and_others_stay(triton, name):
    bind_floats(triton, name, double)
    bind_floats(triton, f"{name}_other", triple)
    done = threading.Event()
    load = Load(lambda number: send_floats(triton, f"{name}_other", [number]), done)

    triton.unbind(name)

    assert "unknown model" in send_floats(triton, name, [1])
    assert (name, "1") not in index_of(triton)
    assert name not in [model.name for model in triton.models]
    seen = len(load.responses)
    wait_until(lambda: len(load.responses) > seen + 3)
    done.set()
    load.join()
    assert all(response == [3 * number] for number, response in load.responses)


def test_a_name_can_be_rebound_to_another_callable(triton, name):
    bind_floats(triton, name, double)
    triton.unbind(name)
    bind_floats(triton, name, triple, config=ModelConfig(max_batch_size=9))

    assert send_floats(triton, name, [1]) == [3]


def test_one_version_is_unbound_and_the_others_serve(triton, name):
    for version, infer_func in ((1, double), (2, triple)):
        bind_floats(triton, name, infer_func, model_version=version)
    assert send_floats(triton, name, [1]) == [3]

    triton.unbind(name, 2)

    assert send_floats(triton, name, [1]) == [2]
    assert "version 2 is not at ready state" in send_floats(triton, name, [1], version=2)
    triton.unbind(name)
    assert "unknown model" in send_floats(triton, name, [1])


@pytest.mark.parametrize("version", [None, 5])
def test_unbinding_an_unknown_model_names_the_bound_ones(version):
    triton = running_triton()
    with pytest.raises(PyTritonBadParameterError, match="the bound models are none"):
        triton.unbind("double", version)
    bind_floats(triton, "double", double)
    what = r"version 5 of model 'single'" if version else r"model 'single'"
    with pytest.raises(PyTritonBadParameterError, match=rf"{what} to unbind; .* are 'double' \(version 1\)"):
        triton.unbind("single", version)


def test_a_model_unbound_before_the_start_is_not_loaded():
    triton = running_triton()
    bind_floats(triton, "double", double)
    bind_floats(triton, "triple", triple)
    triton.unbind("double")
    with triton:
        triton.run()
        assert send_floats(triton, "triple", [1]) == [3]
        assert ("double", "1") not in index_of(triton)


def test_unbind_waits_for_requests_in_flight(triton, name):
    entered, gate = held_model(triton, name)
    request = Background(lambda: send_floats(triton, name, [5]))
    assert entered.wait(30)

    unbinding = Background(lambda: triton.unbind(name))
    wait_until(lambda: request_json(triton, "GET", f"/v2/models/{name}/ready")[0] != 200)
    assert unbinding.is_alive()
    gate.set()

    assert request.finish().result == [5]
    unbinding.finish()
    assert unbinding.error is None


def test_a_callable_may_unbind_its_own_model(triton, name):
    def leave(requests):
        triton.unbind(name)
        return requests

    bind_floats(triton, name, leave)
    assert send_floats(triton, name, [5]) == [5]
    wait_until(lambda: "unknown model" in str(send_floats(triton, name, [1])))


def test_the_process_of_an_instance_ends_with_its_model(triton, name):
    def make():
        import os

        return lambda requests: [{"y": np.int64([os.getpid()])} for _ in requests]

    tensors = [[Tensor((1,), np.int64, each)] for each in "xy"]
    triton.bind(name, ProcessInstance(make), *tensors, config=ModelConfig(batching=False))
    _, reply = infer_json(triton, name, [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}])
    (pid,) = reply["outputs"][0]["data"]
    triton.unbind(name)

    wait_until(lambda: not psutil.pid_exists(pid))


def test_an_unbound_model_stays_unloaded_after_a_restart():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        bind_floats(triton, "triple", triple)
        triton.run()
        triton.unbind("double")
        old = server_of(triton)
        old.kill()
        wait_until(lambda: triton.report.restarts == 1 and triton.is_connected())
        wait_until(lambda: send_floats(triton, "triple", [1]) == [3])

        assert "unknown model" in send_floats(triton, "double", [1])


def test_a_model_of_another_process_is_unbound(triton, name):
    url = f"http://{HOST}:{triton.config.http_port}"
    with RemoteTriton(url, access_token=triton.get_access_token()) as remote:
        bind_floats(remote, name, double)
        assert send_floats(triton, name, [1]) == [2]
        remote.unbind(name)
        assert not isinstance(send_floats(triton, name, [1]), list)
        assert str(remote).splitlines() == [f"RemoteTriton: ready, Triton {remote.server_version}", f"  {url}"]
