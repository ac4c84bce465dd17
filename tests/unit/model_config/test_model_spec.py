from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config import DynamicBatcher, ModelConfig, ModelSpec, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.datatypes import DTYPE_BY_CODE

FLOATS = Tensor((-1,), np.float32)


def spec_of(name="Model", inputs=(FLOATS,), outputs=(FLOATS,), **arguments):
    return ModelSpec.create(name, inputs, outputs, **arguments)


def warmed_up(inputs, *tensors):
    return spec_of(inputs=tensors or [FLOATS], config=ModelConfig(model_warmup=[ModelWarmup("w", 1, inputs, 1)]))


def test_missing_arguments_have_defaults():
    spec = spec_of()

    assert (spec.version, spec.config, spec.instances, spec.strict) == (1, ModelConfig(), 1, False)


def test_unnamed_tensors_are_named_by_their_position():
    spec = spec_of(inputs=[FLOATS, Tensor((1,), bytes, "image"), FLOATS], outputs=[FLOATS, FLOATS])

    assert [tensor.name for tensor in spec.inputs] == ["INPUT_1", "image", "INPUT_3"]
    assert [tensor.name for tensor in spec.outputs] == ["OUTPUT_1", "OUTPUT_2"]


def test_naming_keeps_the_rest_of_a_tensor():
    (tensor,) = spec_of(inputs=[Tensor((2, -1), "float16", optional=True)]).inputs

    assert tensor == Tensor((2, -1), "float16", "INPUT_1", optional=True)


def test_an_input_and_an_output_may_share_a_name():
    spec_of(inputs=[Tensor((1,), float, "a")], outputs=[Tensor((1,), float, "a")])


def test_later_changes_to_the_config_do_not_reach_the_model():
    config = ModelConfig(batcher=DynamicBatcher(preferred_batch_size=[2]))
    spec = spec_of(config=config)
    config.max_batch_size = 100
    config.batcher.preferred_batch_size.append(100)

    assert spec.config == ModelConfig(batcher=DynamicBatcher(preferred_batch_size=[2]))


def test_a_config_that_becomes_invalid_after_its_creation_is_refused():
    config = ModelConfig()
    config.max_batch_size = -1

    with pytest.raises(PyTritonBadParameterError, match=r"Model 'Model': ModelConfig.max_batch_size is -1"):
        spec_of(config=config)


@pytest.mark.parametrize("name", ["a", "add_sub", "bert-base-v1.2", "7B", "~", "-", "x" * 255])
def test_a_name_that_is_valid_in_folders_and_urls_is_accepted(name):
    assert spec_of(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "/", "..", ".hidden", "a\0b", "a b", "a\n", "a%20b", "modèle", "a\\b", "x" * 256, None, 3],
    ids=repr,
)
def test_a_name_that_is_invalid_in_folders_or_urls_is_refused(name):
    with pytest.raises(
        PyTritonBadParameterError, match=r"^Model name .* cannot be the name of a folder .*; use 1 to 255"
    ):
        spec_of(name)


@pytest.mark.parametrize("version", [0, -1, "one", "1.0", 1.5, True, 2**31])
def test_a_version_other_than_a_positive_integer_is_refused(version):
    with pytest.raises(PyTritonBadParameterError, match=rf"Model 'Model': model_version is {version!r}"):
        spec_of(version=version)


def test_a_model_without_instances_is_refused():
    with pytest.raises(PyTritonBadParameterError, match="the number of instances is 0"):
        spec_of(instances=0)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_tensors_that_share_a_name_are_refused(kind):
    tensors = [Tensor((1,), float, "a"), FLOATS, Tensor((1,), int, "a")]
    with pytest.raises(PyTritonBadParameterError, match=f"two {kind}s named 'a', number 1 and number 3; give each"):
        spec_of(**{f"{kind}s": tensors})


def test_a_name_equal_to_another_tensors_positional_name_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"two inputs named 'INPUT_2', number 1 and number 2"):
        spec_of(inputs=[Tensor((1,), float, "INPUT_2"), FLOATS])


def test_a_version_may_be_text_or_a_whole_float():
    assert [spec_of(version=version).version for version in ("2", 2.0)] == [2, 2]


def test_a_model_may_have_no_outputs():
    assert spec_of(outputs=[]).outputs == ()


def test_an_input_that_is_not_a_tensor_is_refused():
    # A comma too many after Tensor(...) makes a tuple of it.
    with pytest.raises(PyTritonBadParameterError, match=r"input number 1 is \(Tensor\(.*use a .*Tensor"):
        spec_of(inputs=[(FLOATS,)])


def test_a_config_of_another_type_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"use ModelConfig\(max_batch_size=\.\.\.\)"):
        spec_of(config={"max_batch_size": 3})


def test_bfloat16_without_ml_dtypes_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.delitem(DTYPE_BY_CODE, 14, raising=False)  # found before
    with pytest.raises(PyTritonBadParameterError, match="pip install ml_dtypes"):
        spec_of(inputs=[Tensor((1,), "bfloat16")])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": WarmupInput(np.float32, (1,), zero_data=True)}, "has the input 'x', which the model lacks"),
        ({"INPUT_1": WarmupInput(np.int8, (1,), zero_data=True)}, "as INT8; it is FP32"),
        (
            {"INPUT_1": WarmupInput(np.float32, (1, 2), zero_data=True)},
            r"the shape \(1, 2\), which does not fit \(-1,\)",
        ),
    ],
)
def test_a_warmup_that_does_not_match_the_inputs_is_refused(inputs, message):
    with pytest.raises(PyTritonModelConfigError, match=f"Model 'Model': warm-up 'w' .*{message}"):
        warmed_up(inputs)


def test_a_warmup_may_leave_inputs_out():
    warmed_up({}, Tensor((1,), float), Tensor((1,), float, optional=True))


def test_a_warmup_file_is_read_once(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    given = WarmupInput(np.float32, (2,), input_data_file=str(tmp_path / "data.npy"))
    spec = warmed_up({"INPUT_1": given})
    (tmp_path / "data.npy").unlink()

    again = dataclasses.replace(spec, instances=2)
    (warmup,) = again.config.model_warmup
    assert warmup.inputs["INPUT_1"].samples.tolist() == [[0, 1]]
    assert given.samples is None, "what is bound is a copy"


def test_warmups_of_different_sizes_may_share_an_input(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(3, dtype=np.float32)[:, None])
    data = WarmupInput(np.float32, (1,), input_data_file=str(tmp_path / "data.npy"))
    config = ModelConfig(model_warmup=[ModelWarmup("w", size, {"INPUT_1": data}, 1) for size in (1, 2)])

    first, second = spec_of(config=config).config.model_warmup
    assert first.inputs["INPUT_1"].samples.ravel().tolist() == [0, 1]
    assert second.inputs["INPUT_1"].samples.ravel().tolist() == [0, 1]
