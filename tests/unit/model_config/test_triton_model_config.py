"""A model's configuration as a server reports it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from pytriton.model_config import DeviceKind, DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.model_config.datatypes import DATATYPES
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.triton_config import triton_model_config
from pytriton.model_config.triton_model_config import ResponseCache, TensorSpec, TritonModelConfig

DTYPES = [np.int8, np.float32, bytes, bool]
TENSORS = st.lists(
    st.builds(
        Tensor,
        shape=st.lists(st.integers(-1, 1000).filter(bool), max_size=3).map(tuple),
        dtype=st.sampled_from(DTYPES),
        optional=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
CONFIGS = st.builds(ModelConfig, batching=st.booleans(), max_batch_size=st.integers(1, 1000), decoupled=st.booleans())


@given(TENSORS, TENSORS, CONFIGS)
def test_the_bound_configuration_is_read_in_every_format(inputs, outputs, config):
    bound = ModelSpec.create("M", inputs, outputs, config=config)
    as_json = json.loads(json.dumps(triton_model_config(bound)))
    # gRPC's message leaves out what has its default, and writes large numbers as text.
    as_protobuf = MessageToDict(ParseDict(as_json, model_config_pb2.ModelConfig()), preserving_proto_field_name=True)

    read = TritonModelConfig.from_dict(as_json)
    assert TritonModelConfig.from_dict(as_protobuf) == read
    assert (read.model_name, read.batching, read.decoupled) == ("M", config.batching, config.decoupled)
    assert read.max_batch_size == (config.max_batch_size if config.batching else 0)
    assert [each.name for each in read.inputs] == [tensor.name for tensor in bound.inputs]
    assert [each.datatype for each in read.outputs] == [tensor.datatype for tensor in bound.outputs]
    assert [each.shape for each in read.inputs] == [tensor.shape or (1,) for tensor in bound.inputs]
    assert [each.optional for each in read.inputs] == [bool(tensor.optional) for tensor in bound.inputs]


@pytest.mark.parametrize("microseconds", [0.1, 0.0079 * 1e6, np.float32(0.5)])
def test_fractions_of_microseconds_are_dropped(microseconds):
    policy = QueuePolicy(default_timeout_microseconds=microseconds)
    batcher = DynamicBatcher(max_queue_delay_microseconds=microseconds, default_queue_policy=policy)
    bound = ModelSpec.create("M", [], [], config=ModelConfig(batcher=batcher))
    read = TritonModelConfig.from_dict(triton_model_config(bound)).batcher
    assert read.max_queue_delay_microseconds == int(microseconds)
    assert read.default_queue_policy.default_timeout_microseconds == int(microseconds)


def test_settings_are_read():
    policy = QueuePolicy(TimeoutAction.DELAY, 5, True, 7)
    batcher = DynamicBatcher(3, [2, 4], False, 2, 1, policy, {1: policy})
    bound = ModelSpec.create(
        "M", [], [], version=3, config=ModelConfig(batcher=batcher, response_cache=True), instances=2
    )
    as_json = triton_model_config(bound, {"key": "value"}, [2, 3])
    as_protobuf = MessageToDict(
        ParseDict(json.loads(json.dumps(as_json)), model_config_pb2.ModelConfig()), preserving_proto_field_name=True
    )
    for message in (as_json, as_protobuf):
        read = TritonModelConfig.from_dict(message)
        assert (read.batcher, read.model_version, read.response_cache) == (batcher, 3, ResponseCache(True))
        assert read.instance_group == {DeviceKind.KIND_CPU: 2}
        assert read.backend_parameters == {"key": "value"}
        assert TritonModelConfig.from_dict(message, "2").model_version == 2


def test_a_configuration_without_a_batcher_is_read():
    bound = ModelSpec.create("M", [], [], config=ModelConfig(batcher=None))
    read = TritonModelConfig.from_dict(triton_model_config(bound))
    assert (read.batching, read.batcher) == (True, None)


def test_media_types_are_read():
    image = Tensor((1,), bytes, "image", media_type="image/*")
    text = Tensor((1,), bytes, "image", media_type="text/html")
    bound = ModelSpec.create("M", [image, Tensor((1,), bytes, "other")], [text])
    read = TritonModelConfig.from_dict(triton_model_config(bound))
    assert [each.media_type for each in (*read.inputs, *read.outputs)] == ["image/*", "", "text/html"]
    assert [each.is_binary for each in (*read.inputs, *read.outputs)] == [True, False, False]


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_all_datatypes(datatype):
    spec = TensorSpec.from_dict({"name": "x", "data_type": datatype.config_name, "dims": ["-1", 2]})

    assert (spec.datatype, spec.shape, spec.numpy_dtype) == (datatype, (-1, 2), datatype.numpy_dtype)
    assert TensorSpec("x", (-1, 2), spec.dtype) == spec
    assert str(spec) == f"'x': {datatype.name} (-1, 2)"


def test_configurations_of_other_backends_are_read():
    config = TritonModelConfig.from_dict(
        {"name": "net", "platform": "onnxruntime_onnx", "response_cache": {"enable": True}}, "3"
    )

    assert (config.backend, config.response_cache, config.model_version) == ("onnxruntime_onnx", ResponseCache(True), 3)
    assert (config.inputs, config.outputs, config.batching) == ((), (), False)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"name": "x", "input": [{}]},
        {"name": "x", "input": [{"name": "a", "data_type": "TYPE_NONE", "dims": [1]}]},
        {"name": "x", "max_batch_size": "many"},
        {"name": "x", "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": ["a"]}]},
    ],
)
def test_invalid_configurations_are_refused(message):
    with pytest.raises((KeyError, ValueError)):
        TritonModelConfig.from_dict(message)
