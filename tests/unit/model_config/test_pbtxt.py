from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from pytriton.model_config import (
    DynamicBatcher,
    ModelConfig,
    ModelSpec,
    QueuePolicy,
    Tensor,
    TimeoutAction,
    model_config_pbtxt,
)
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.datatypes import DATATYPES

UINT64 = st.integers(0, 2**64 - 1)
UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
DTYPES = st.sampled_from([datatype.numpy_dtype for datatype in DATATYPES] + ["float32", bytes, str, np.int8])


@st.composite
def tensors(draw):
    names = draw(st.lists(st.none() | TEXT, min_size=1, max_size=4, unique_by=lambda name: name or object()))
    # A name that a nameless neighbor would get by its position is an error, which other tests look at.
    names = [None if name and name.startswith(("INPUT_", "OUTPUT_")) else name for name in names]
    shapes = st.lists(st.just(-1) | st.integers(1, 2**40), max_size=4)
    return [Tensor(draw(shapes), draw(DTYPES), name, draw(st.booleans())) for name in names]


@st.composite
def batchers(draw, max_batch_size):
    levels = draw(st.integers(0, 3))
    policies = st.builds(
        QueuePolicy,
        timeout_action=st.sampled_from(TimeoutAction),
        default_timeout_microseconds=UINT64,
        allow_timeout_override=st.booleans(),
        max_queue_size=UINT32,
    )
    return DynamicBatcher(
        max_queue_delay_microseconds=draw(UINT64),
        preferred_batch_size=draw(st.none() | st.lists(st.integers(1, max_batch_size))),
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_queue_policy=draw(st.none() | policies),
        priority_queue_policy=draw(st.dictionaries(st.integers(1, levels), policies)) if levels else None,
    )


@st.composite
def warmups(draw, inputs, batching):
    contents = {}
    for position, tensor in enumerate(inputs, start=1):
        shape = [draw(st.integers(1, 9)) if dim == -1 else dim for dim in tensor.shape]
        zero = draw(st.booleans())
        contents[tensor.name or f"INPUT_{position}"] = WarmupInput(tensor.dtype, shape, zero, not zero)
    return ModelWarmup(draw(TEXT), 1, contents, draw(UINT32))


@st.composite
def specs(draw):
    inputs = draw(tensors())
    batching, decoupled = draw(st.booleans()), draw(st.booleans())
    max_batch_size = draw(st.integers(1, 2**31 - 1))
    config = ModelConfig(
        batching=batching,
        max_batch_size=max_batch_size,
        batcher=draw(batchers(max_batch_size)),
        response_cache=draw(st.booleans()) and not decoupled,
        decoupled=decoupled,
        model_warmup=draw(st.none() | st.lists(warmups(inputs, batching), max_size=2)),
    )
    instances = draw(st.integers(1, 2**31 - 1))
    return ModelSpec.create("Model", inputs, draw(tensors()), config=config, instances=instances)


def parsed(spec, parameters=None):
    return text_format.Parse(model_config_pbtxt(spec, parameters or {}), model_config_pb2.ModelConfig())


def assert_same_tensor(tensor, message, batching):
    assert message.name == tensor.name
    assert model_config_pb2.DataType.Name(message.data_type) == tensor.datatype.config_name
    assert tuple(message.dims) == (tensor.shape or (1,))
    assert message.HasField("reshape") == (batching and not tensor.shape)
    assert list(message.reshape.shape) == []


def assert_same_policy(policy, message):
    assert message.TimeoutAction.Name(message.timeout_action) == policy.timeout_action.name
    assert message.default_timeout_microseconds == policy.default_timeout_microseconds
    assert message.allow_timeout_override == policy.allow_timeout_override
    assert message.max_queue_size == policy.max_queue_size


def assert_same_batcher(batcher, message):
    assert message.max_queue_delay_microseconds == batcher.max_queue_delay_microseconds
    assert list(message.preferred_batch_size) == (batcher.preferred_batch_size or [])
    assert message.preserve_ordering == batcher.preserve_ordering
    assert message.priority_levels == batcher.priority_levels
    assert message.default_priority_level == batcher.default_priority_level
    assert message.HasField("default_queue_policy") == (batcher.default_queue_policy is not None)
    if batcher.default_queue_policy is not None:
        assert_same_policy(batcher.default_queue_policy, message.default_queue_policy)
    policies = batcher.priority_queue_policy or {}
    assert set(message.priority_queue_policy) == set(policies)
    for level, policy in policies.items():
        assert_same_policy(policy, message.priority_queue_policy[level])


def assert_same_warmup(warmup, message):
    assert (message.name, message.batch_size, message.count) == (warmup.name, warmup.batch_size, warmup.count)
    assert set(message.inputs) == set(warmup.inputs)
    for name, data in warmup.inputs.items():
        content = message.inputs[name]
        assert model_config_pb2.DataType.Name(content.data_type) == data.datatype.config_name
        assert tuple(content.dims) == (tuple(data.shape) or (1,))
        assert content.zero_data, "the worker puts the data in its place"


@given(specs(), st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), TEXT))
def test_triton_reads_the_specified_configuration(spec, parameters):
    message = parsed(spec, parameters)
    config = spec.config

    assert (message.name, message.backend) == ("Model", "pytriton")
    assert message.max_batch_size == (config.max_batch_size if config.batching else 0)
    assert len(message.input) == len(spec.inputs)
    for tensor, read in zip(spec.inputs, message.input, strict=True):
        assert_same_tensor(tensor, read, config.batching)
        assert read.optional == tensor.optional
    assert len(message.output) == len(spec.outputs)
    for tensor, read in zip(spec.outputs, message.output, strict=True):
        assert_same_tensor(tensor, read, config.batching)
    (group,) = message.instance_group
    assert (group.count, group.kind) == (spec.instances, model_config_pb2.ModelInstanceGroup.KIND_CPU)
    assert message.HasField("dynamic_batching") == config.batching
    if config.batching:
        assert_same_batcher(config.batcher, message.dynamic_batching)
    assert message.response_cache.enable == config.response_cache
    assert message.model_transaction_policy.decoupled == config.decoupled
    assert len(message.model_warmup) == len(config.model_warmup or [])
    for warmup, read in zip(config.model_warmup or [], message.model_warmup, strict=True):
        assert_same_warmup(warmup, read)
    assert {key: value.string_value for key, value in message.parameters.items()} == parameters


def test_dynamic_batching_is_on_by_default():
    message = parsed(ModelSpec.create("Model", [], [Tensor((1,), float)]))

    assert message.HasField("dynamic_batching")
    assert message.dynamic_batching == model_config_pb2.ModelDynamicBatching()


@pytest.mark.parametrize(
    "batcher", [DynamicBatcher(), DynamicBatcher(preferred_batch_size=[], priority_queue_policy={})]
)
def test_no_batcher_is_written_if_the_backend_builds_batches(batcher):
    spec = ModelSpec.create("Model", [], [Tensor((1,), float)], config=ModelConfig(batcher=batcher))

    message = text_format.Parse(model_config_pbtxt(spec, builds_batches=True), model_config_pb2.ModelConfig())

    assert not message.HasField("dynamic_batching")
    assert message.parameters["pytriton_builds_batches"].string_value == "yes"


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(batching=False),
        ModelConfig(batcher=DynamicBatcher(max_queue_delay_microseconds=1)),
        ModelConfig(batcher=DynamicBatcher(preferred_batch_size=[2])),
        ModelConfig(batcher=DynamicBatcher(preserve_ordering=True)),
        ModelConfig(batcher=DynamicBatcher(priority_levels=2, default_priority_level=1)),
        ModelConfig(batcher=DynamicBatcher(default_queue_policy=QueuePolicy())),
    ],
)
def test_the_backend_builds_no_batches_if_the_batcher_has_settings(config):
    spec = ModelSpec.create("Model", [], [Tensor((1,), float)], config=config)

    assert model_config_pbtxt(spec, builds_batches=True) == model_config_pbtxt(spec)


def test_ordering_is_preserved_on_request():
    config = ModelConfig(batcher=DynamicBatcher(preserve_ordering=True))

    assert parsed(
        ModelSpec.create("Model", [], [Tensor((1,), float)], config=config)
    ).dynamic_batching.preserve_ordering


@pytest.mark.parametrize("batching", [True, False])
def test_a_scalar_has_one_dimension_on_the_wire_that_a_batching_model_does_not_see(batching):
    scalar = Tensor((), np.float32)
    message = parsed(ModelSpec.create("Model", [scalar], [scalar], config=ModelConfig(batching=batching)))

    for tensor in (*message.input, *message.output):
        assert list(tensor.dims) == [1]
        # Triton allows no empty reshape without batching.
        assert tensor.HasField("reshape") == batching


def test_required_inputs_missing_in_a_warmup_are_placeholders():
    zeros = WarmupInput(np.float32, (3,), random_data=True)
    inputs = [
        Tensor((-1,), np.float32, "x"),
        Tensor((-1, 2), np.int8, "k"),
        Tensor((1,), bytes, "label", optional=True),
    ]
    config = ModelConfig(model_warmup=[ModelWarmup("w", 1, {"x": zeros}, 1)])
    (warmup,) = parsed(ModelSpec.create("Model", inputs, [], config=config)).model_warmup

    assert {name: list(content.dims) for name, content in warmup.inputs.items()} == {"x": [3], "k": [1, 2]}
    assert all(content.zero_data for content in warmup.inputs.values())


def test_sizes_of_numpy_integers_are_written_as_numbers():
    config = ModelConfig(max_batch_size=np.int64(8), batcher=DynamicBatcher(preferred_batch_size=[np.int32(4)]))
    message = parsed(ModelSpec.create("Model", [], [Tensor((np.int64(3),), float)], config=config))

    assert (message.max_batch_size, list(message.dynamic_batching.preferred_batch_size)) == (8, [4])
