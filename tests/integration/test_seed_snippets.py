"""The snippets of nvidia-pytriton's documentation, run as they are written.

What a snippet leaves to its reader, such as ``model``, is given to it; what it starts is tried before it stops.
"""

from __future__ import annotations

import logging
import pathlib
import sys
import threading
import types

import numpy as np
import pytest
from serving import (
    InferenceServerException,
    bind_floats,
    client_of,
    free_ports_environment,
    infer_json,
    json_floats,
    request_json,
    send_floats,
    servers,
    wait_until,
)

from pytriton.client import ModelClient
from pytriton.triton import Triton

SNIPPETS = pathlib.Path(__file__).parent / "seed_snippets"


@pytest.fixture(autouse=True)
def free_ports(monkeypatch):
    for name, value in free_ports_environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run_snippet(monkeypatch):
    """Runs snippets one after the other, as the cells of a notebook."""
    namespace = {"__name__": "__main__"}

    def run(name, *, before_exit=None, **given):
        namespace.update(given)
        path = SNIPPETS / f"{name}.py"
        code = compile(path.read_text(), path, "exec", dont_inherit=True)
        with monkeypatch.context() as patch:
            if before_exit is not None:
                leave = Triton.__exit__

                def look_and_leave(triton, *error):
                    if error[0] is None:
                        triton.run()
                        before_exit(triton)
                    return leave(triton, *error)

                patch.setattr(Triton, "__exit__", look_and_leave)
            exec(code, namespace)
        return namespace

    yield run
    triton = namespace.get("triton")
    if triton is not None:
        triton.stop()


def lengths(one, many):
    """A model of texts: the length of each of the many plus that of the one."""
    return np.vectorize(len, otypes=[np.float32])(many) + np.vectorize(len, otypes=[np.float32])(one)


def send_texts(model):
    def send(triton):
        for protocol in ("http", "grpc"):
            with client_of(triton, protocol) as client:
                one, many = np.array([[b"ab"]], object), np.array([[b"", b"\0", b"xyz"]], object)
                received = client.infer(model, {"INPUT_1": one, "INPUT_2": many})
                assert received["OUTPUT_1"].tolist() == [[2, 3, 5]]
        with ModelClient(f"localhost:{triton.config.http_port}", model) as client:
            assert client.infer_sample("ab", ["", "\0", "xyz"])["OUTPUT_1"].tolist() == [2, 3, 5]

    return send


def test_binding_a_model_of_bytes(run_snippet):
    run_snippet("binding_bytes", model=lengths, before_exit=send_texts("ModelName"))
    assert not servers()


def test_binding_a_lambda_that_returns_its_requests(run_snippet):
    def send(triton):
        status, response = infer_json(triton, "Identity", [json_floats([7], "INPUT_1")])
        assert status == 200, response
        assert response["outputs"] == [{"name": "OUTPUT_1", "datatype": "FP32", "shape": [1, 1], "data": [7]}]

    run_snippet("binding_identity", before_exit=send)


def test_binding_several_instances(run_snippet):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("the snippet wants a GPU")

    def send(triton):
        with client_of(triton) as client:
            assert client.infer("Linear", {"INPUT_1": np.zeros((2, 20), np.float32)})["OUTPUT_1"].shape == (2, 30)

    run_snippet("instances_wrapper")
    run_snippet("instances_factory")
    run_snippet("instances_bind", before_exit=send)


class _FakeTensor:
    """As much of a tensor as the snippet needs."""

    def __init__(self, array, device="cpu"):
        self._array, self.device = array, device

    def to(self, device):
        return _FakeTensor(self._array, device)

    def cpu(self):
        return self

    def detach(self):
        return self

    def numpy(self):
        return self._array


class _FakeLinear:
    def __init__(self, inputs, outputs):
        self.weights = np.ones((inputs, outputs), np.float32)

    def to(self, device):
        self.device = device
        return self

    def eval(self):
        return self

    def __call__(self, tensor):
        assert tensor.device == self.device
        return _FakeTensor(tensor.numpy() @ self.weights, self.device)


def test_binding_several_instances_of_a_stand_in_for_torch(run_snippet, monkeypatch):
    torch = types.ModuleType("torch")
    torch.nn = types.SimpleNamespace(Module=_FakeLinear, Linear=_FakeLinear)
    torch.from_numpy = _FakeTensor
    monkeypatch.setitem(sys.modules, "torch", torch)

    def send(triton):
        with client_of(triton) as client:
            for _ in range(4):
                received = client.infer("Linear", {"INPUT_1": np.ones((2, 20), np.float32)})["OUTPUT_1"]
                assert received.tolist() == [[20.0] * 30] * 2

    run_snippet("instances_wrapper")
    run_snippet("instances_factory")
    run_snippet("instances_bind", before_exit=send)


def test_tensors_without_names(run_snippet):
    namespace = run_snippet("tensors_unnamed")

    assert [tensor.datatype.name for tensor in namespace["inputs"]] == ["FP32"]
    assert [tensor.datatype.name for tensor in namespace["output"]] == ["FP32", "INT32"]
    served_names(namespace["inputs"], namespace["output"], ["INPUT_1"], ["OUTPUT_1", "OUTPUT_2"])


def test_tensors_with_names(run_snippet):
    namespace = run_snippet("tensors_named")

    assert namespace["inputs"][0].shape == (224, 224, 3)
    served_names(namespace["inputs"], namespace["outputs"], ["image"], ["class"])


def served_names(inputs, outputs, input_names, output_names):
    with Triton() as triton:
        triton.bind("names", lambda requests: requests, inputs, outputs)
        triton.run()
        _, metadata = request_json(triton, "GET", "/v2/models/names")
        assert [each["name"] for each in metadata["inputs"]] == input_names
        assert [each["name"] for each in metadata["outputs"]] == output_names


def test_dtypes_in_three_ways(run_snippet):
    namespace = run_snippet("tensors_dtypes")

    # The commas make tuples of them.
    assert {namespace[f"tensor{number}"][0].datatype.name for number in (1, 2, 3)} == {"FP32"}


def test_numpy_drops_trailing_zeros_of_bytes_and_keeps_those_of_objects():
    assert np.array([b"\xff\x00"]).tolist() == [b"\xff"]
    assert np.array([b"\xff\x00"], dtype=object).tolist() == [b"\xff\x00"]


def test_an_unrecoverable_error_shuts_the_server_down(run_snippet):
    def model(x):
        raise OSError("the disk is on fire")

    namespace = run_snippet("unrecoverable", model=model)
    with Triton() as triton:
        bind_floats(triton, "broken", namespace["infer_fn"])
        triton.run()
        with client_of(triton) as client, pytest.raises(InferenceServerException, match="no further inferences"):
            client.infer("broken", {"x": np.ones((1, 1), np.float32)})
        wait_until(lambda: not triton.is_alive())


def test_an_unrecoverable_error_that_does_not_happen(run_snippet):
    namespace = run_snippet("unrecoverable", model=lambda x: {"y": x + 1})
    with Triton() as triton:
        bind_floats(triton, "fine", namespace["infer_fn"])
        triton.run()
        assert send_floats(triton, "fine", [1, 2]) == [2, 3]


def test_serving_a_model(run_snippet):
    run_snippet("serving_infer_fn", model=lengths)
    run_snippet("serving_bind", before_exit=send_texts("MyModel"))


def test_serving_until_it_is_stopped(run_snippet, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pytriton.triton")
    entered = []
    enter = Triton.__enter__

    def enter_and_notify(triton):
        entered.append(triton)
        return enter(triton)

    monkeypatch.setattr(Triton, "__enter__", enter_and_notify)
    thread = threading.Thread(target=lambda: run_snippet("serving_serve", Triton=Triton))
    thread.start()
    wait_until(lambda: "Metrics: " in caplog.text, 30, "serve to say where the models are")

    entered[0].stop()

    thread.join(10)
    assert not thread.is_alive()
    assert not servers()


def test_working_in_a_notebook(run_snippet):
    run_snippet("notebook_triton")
    run_snippet("notebook_bind")
    triton = run_snippet("notebook_run")["triton"]

    for protocol in ("http", "grpc"):
        with client_of(triton, protocol) as client:
            inputs = {"INPUT_1": np.array([[10]], np.float32), "INPUT_2": np.array([[1, 2, 3]], np.float32)}
            assert client.infer("MyModel", inputs)["OUTPUT_1"].tolist() == [[11, 12, 13]]

    run_snippet("notebook_stop")
    assert not triton.is_alive()
    assert not servers()
