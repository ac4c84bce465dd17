"""ONNX models: definitions made from files, and refused arguments."""

from __future__ import annotations

import os

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from pytriton.adapters import onnx_model
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance

DOUBLE = "double (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }"


def onnx_bytes(graph, **metadata):
    """A model in ONNX's text format as a file's content."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> {graph}')
    for field, value in metadata.items():
        setattr(model, field, value)
    return model.SerializeToString()


def identity(declaration):
    """A model that returns its input, declared like ``float[N, 3]``."""
    return onnx_bytes(f"identity ({declaration} x) => ({declaration} y) {{ y = Identity(x) }}")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "double.onnx"
    path.write_bytes(onnx_bytes(DOUBLE))
    return path


def test_inputs_and_outputs_are_those_of_the_file(file):
    definition = onnx_model(file)

    assert definition.inputs == [Tensor((3,), np.float32, "x")]
    assert definition.outputs == [Tensor((3,), np.float32, "y")]
    assert definition.config == ModelConfig(max_batch_size=64)


def test_path_bytes_and_session_give_the_same_definition(file):
    for model in (file, str(file), file.read_bytes(), onnxruntime.InferenceSession(str(file))):
        (response,) = onnx_model(model).infer_func([{"x": np.ones((2, 3), np.float32)}])
        assert response["y"].tolist() == [[2, 2, 2]] * 2


@pytest.mark.parametrize(
    ("declared", "dtype"),
    [
        ("float16", np.float16),
        ("float", np.float32),
        ("double", np.float64),
        ("bool", bool),
        ("string", bytes),
        ("int8", np.int8),
        ("int16", np.int16),
        ("int32", np.int32),
        ("int64", np.int64),
        ("uint8", np.uint8),
        ("uint16", np.uint16),
        ("uint32", np.uint32),
        ("uint64", np.uint64),
    ],
)
def test_each_type_has_its_dtype(declared, dtype):
    assert onnx_model(identity(f"{declared}[N, 2]")).inputs == [Tensor((2,), dtype, "x")]


def test_type_that_triton_lacks_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"input 'x' is of type tensor\(bfloat16\)"):
        onnx_model(identity("bfloat16[N, 2]"))


@pytest.mark.parametrize(
    ("declared", "batching", "shape"),
    [
        ("float[N, 3]", True, (3,)),
        ("float[N, M, 3]", True, (-1, 3)),
        ("float[?, 3]", True, (3,)),
        ("float[N]", True, ()),
        ("float[1, 3]", False, (1, 3)),
        ("float[4, N]", False, (4, -1)),
        ("float", False, ()),
    ],
)
def test_first_dimension_that_varies_is_the_batch(declared, batching, shape):
    definition = onnx_model(identity(declared))

    assert definition.config.batching is batching
    assert [tensor.shape for tensor in (*definition.inputs, *definition.outputs)] == [shape] * 2


def test_inputs_with_first_dimensions_of_their_own_have_no_batch():
    pair = onnx_bytes("pair (float[N] a, float[M] b) => (float[N] c, float[M] d) { c = Identity(a) d = Identity(b) }")

    assert onnx_model(pair).config.batching is False


def test_batching_may_be_switched_off():
    definition = onnx_model(identity("float[N, 3]"), batching=False)

    assert definition.config.batching is False
    assert definition.inputs == [Tensor((-1, 3), np.float32, "x")]


def test_batch_that_the_file_does_not_have_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"input 'x' has the fixed shape \(1, 3\)"):
        onnx_model(identity("float[1, 3]"), batching=True)


def test_strings_are_text():
    (response,) = onnx_model(identity("string[N, 1]")).infer_func([{"x": np.array([["ü".encode()]], object)}])

    assert response["y"].tolist() == [["ü"]]


def test_input_may_have_any_name():
    graph = onnx_bytes("g (float[N, 1] self) => (float[N, 1] y) { y = Add(self, self) }")

    (response,) = onnx_model(graph).infer_func([{"self": np.ones((1, 1), np.float32)}])

    assert response["y"].tolist() == [[2]]


@pytest.mark.parametrize(
    ("limit", "arguments", "count", "spins"),
    [
        (2, {}, 2, False),
        (2, {"threads": 3}, 3, False),
        (4, {}, 0, True),
        (4, {"threads": 3}, 3, True),
        (2, {"session_options": onnxruntime.SessionOptions()}, 0, True),
    ],
    ids=["a limit", "a limit and a number", "no lower limit", "a number", "options"],
)
def test_threads_follow_the_cpu_limit(file, monkeypatch, limit, arguments, count, spins):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("pytriton.adapters.onnx.cpu_count", lambda: limit)
    found = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, sess_options, **rest):
            options = sess_options or onnxruntime.SessionOptions()
            try:
                spins = options.get_session_config_entry("session.intra_op.allow_spinning") != "0"
            except RuntimeError:  # it is not set
                spins = True
            found.append((options.intra_op_num_threads, spins))
            super().__init__(path, sess_options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    onnx_model(file, **arguments)

    assert found == [(count, spins)]


def test_processes_load_the_model_themselves(file, monkeypatch):
    monkeypatch.chdir(file.parent)

    instances = onnx_model(file.name, processes=2).infer_func

    assert [type(each) for each in instances] == [ProcessInstance] * 2
    monkeypatch.chdir("/")
    (response,) = instances[0].factory(*instances[0].args)([{"x": np.ones((1, 3), np.float32)}])
    assert response["y"].tolist() == [[2, 2, 2]]


def test_max_batch_size_is_that_of_the_definition(file):
    assert onnx_model(file, max_batch_size=5).config.max_batch_size == 5


def test_description_is_that_of_the_file():
    described = onnx_model(onnx_bytes(DOUBLE, doc_string="Doubles."))

    assert described.infer_func.__doc__ == "Doubles."


def test_custom_options_are_accepted(file):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    assert onnx_model(file, session_options=options).inputs[0].name == "x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": -1}, "onnx_model: processes is -1"),
        ({"processes": 2, "session_options": object()}, "session_options cannot be combined with processes"),
        ({"threads": 0}, "onnx_model: threads is 0"),
        ({"threads": 1, "session_options": object()}, "session_options cannot be combined with threads"),
        ({"providers": ["NoProvider"]}, "has no provider 'NoProvider', but .*CPUExecutionProvider"),
        ({"providers": ["NoProvider"], "processes": 2}, "has no provider 'NoProvider'"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
    ],
)
def test_invalid_arguments_are_refused(file, arguments, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        onnx_model(file, **arguments)


@pytest.mark.parametrize("arguments", [{"threads": 2}, {"providers": ["CPUExecutionProvider"]}, {"processes": 1}])
def test_settings_for_a_given_session_are_refused(file, arguments):
    with pytest.raises(PyTritonBadParameterError, match=f"{next(iter(arguments))} cannot be combined with a session"):
        onnx_model(onnxruntime.InferenceSession(str(file)), **arguments)


def test_missing_file_is_named():
    with pytest.raises(PyTritonBadParameterError, match=r"'/no/such\.onnx' is not a file"):
        onnx_model("/no/such.onnx")


def test_file_without_a_model_is_named(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(PyTritonBadParameterError, match=r"onnx_model cannot load '.*broken\.onnx'"):
        onnx_model(tmp_path / "broken.onnx")


def test_other_objects_than_models_are_refused():
    with pytest.raises(PyTritonBadParameterError, match="onnx_model got an object of type int"):
        onnx_model(3)
