from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.model_config.common import ModelWarmup, WarmupInput

REQUIRED = dataclasses.MISSING


@pytest.mark.parametrize(
    ("class_", "fields"),
    [
        (Tensor, {"shape": REQUIRED, "dtype": REQUIRED, "name": None, "optional": False}),
        (
            ModelConfig,
            {
                "batching": True,
                "max_batch_size": 4,
                "batcher": REQUIRED,
                "response_cache": False,
                "decoupled": False,
                "model_warmup": None,
            },
        ),
        (
            DynamicBatcher,
            {
                "max_queue_delay_microseconds": 0,
                "preferred_batch_size": None,
                "preserve_ordering": False,
                "priority_levels": 0,
                "default_priority_level": 0,
                "default_queue_policy": None,
                "priority_queue_policy": None,
            },
        ),
        (
            QueuePolicy,
            {
                "timeout_action": TimeoutAction.REJECT,
                "default_timeout_microseconds": 0,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            },
        ),
        (
            WarmupInput,
            {
                "dtype": REQUIRED,
                "shape": REQUIRED,
                "zero_data": False,
                "random_data": False,
                "input_data_file": None,
            },
        ),
        (ModelWarmup, {"name": REQUIRED, "batch_size": REQUIRED, "inputs": REQUIRED, "count": REQUIRED}),
    ],
)
def test_fields_order_and_defaults_equal_those_of_nvidia_pytriton(class_, fields):
    # There may be more behind them.
    known = dataclasses.fields(class_)[: len(fields)]
    assert {field.name: field.default for field in known} == fields
    assert [field.name for field in known] == list(fields)


def test_the_default_batcher_batches_without_delay():
    assert ModelConfig().batcher == DynamicBatcher()


@pytest.mark.parametrize("size", [0, -1, 2**31, 1.5, "4", True, None])
def test_a_max_batch_size_other_than_a_positive_integer_is_refused(size):
    with pytest.raises(PyTritonBadParameterError, match=rf"ModelConfig.max_batch_size is {size!r}; use an integer"):
        ModelConfig(max_batch_size=size)


def test_a_preferred_batch_size_over_the_maximum_is_refused():
    with pytest.raises(PyTritonModelConfigError, match=r"preferred_batch_size has 8, over .*max_batch_size of 4"):
        ModelConfig(max_batch_size=4, batcher=DynamicBatcher(preferred_batch_size=[4, 8]))


def test_without_batching_preferred_batch_sizes_are_ignored():
    ModelConfig(batching=False, max_batch_size=4, batcher=DynamicBatcher(preferred_batch_size=[8]))


def test_without_batching_a_max_batch_size_of_0_is_accepted():
    assert ModelConfig(batching=False, max_batch_size=0).max_batch_size == 0
    with pytest.raises(PyTritonBadParameterError, match="max_batch_size is 0; use an integer from 1"):
        ModelConfig(max_batch_size=0)


def test_a_response_cache_for_decoupled_responses_is_refused():
    with pytest.raises(PyTritonModelConfigError, match="both decoupled and response_cache"):
        ModelConfig(decoupled=True, response_cache=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds is -1; use an integer"),
        ({"preferred_batch_size": [0]}, "preferred_batch_size is 0; use an integer from 1"),
        ({"preferred_batch_size": ["4"]}, "preferred_batch_size is '4'; use an integer from 1"),
        ({"priority_levels": -1}, "priority_levels is -1; use an integer from 0"),
        ({"priority_queue_policy": {0: QueuePolicy()}}, "priority_queue_policy is 0; use an integer from 1"),
        ({"priority_queue_policy": {1: 5}}, r"priority_queue_policy\[1\] is 5; use a QueuePolicy"),
        ({"default_queue_policy": 5}, "default_queue_policy is 5; use a QueuePolicy"),
        ({"preferred_batch_size": 4}, r"preferred_batch_size is 4; use a list of integers, such as \[4, 8\]"),
        ({"preferred_batch_size": "4"}, "preferred_batch_size is '4'; use a list of integers"),
        ({"preserve_ordering": "false"}, "preserve_ordering is 'false'; use True or False"),
        (
            {"priority_queue_policy": [QueuePolicy()]},
            r"priority_queue_policy is \[Queue.*; use a dictionary of policies",
        ),
        (
            {"max_queue_delay_microseconds": 2**64},
            "max_queue_delay_microseconds is 18446744073709551616; use an integer from 0 to 184",
        ),
        (
            {"max_queue_delay_microseconds": "500"},
            "max_queue_delay_microseconds is '500'; use an integer from 0 up, not text",
        ),
    ],
)
def test_an_invalid_field_of_the_batcher_is_refused(arguments, message):
    with pytest.raises(PyTritonBadParameterError, match=rf"DynamicBatcher\.{message}"):
        DynamicBatcher(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"priority_levels": 2}, "2 priority_levels and default_priority_level 0; set the default from 1"),
        ({"priority_levels": 2, "default_priority_level": 3}, r"default_priority_level 3; set .* from 1 .* to 2"),
        ({"priority_queue_policy": {1: QueuePolicy()}}, "has level 1, but there are 0 priority_levels"),
        (
            {"preserve_ordering": True, "priority_levels": 2, "default_priority_level": 1},
            "preserve_ordering and 2 priority_levels",
        ),
        (
            {"preserve_ordering": True, "default_queue_policy": QueuePolicy(TimeoutAction.DELAY, 5)},
            "preserve_ordering and a queue policy with TimeoutAction.DELAY",
        ),
    ],
)
def test_fields_of_the_batcher_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(PyTritonModelConfigError, match=f"DynamicBatcher.*{message}"):
        DynamicBatcher(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"timeout_action": "REJECT"}, {"default_timeout_microseconds": -1}, {"max_queue_size": 2**32}],
    ids=repr,
)
def test_a_queue_policy_that_triton_refuses_is_refused(arguments):
    with pytest.raises(PyTritonBadParameterError, match=f"QueuePolicy.{next(iter(arguments))}"):
        QueuePolicy(**arguments)


@pytest.mark.parametrize("microseconds", [-0.5, math.nan, math.inf, True])
def test_microseconds_that_are_no_duration_are_refused(microseconds):
    with pytest.raises(PyTritonBadParameterError, match="use an integer from 0"):
        DynamicBatcher(max_queue_delay_microseconds=microseconds)


def test_a_batcher_of_another_type_is_refused():
    with pytest.raises(PyTritonBadParameterError, match="use a DynamicBatcher"):
        ModelConfig(batcher={"max_queue_delay_microseconds": 3})


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({}, "no data"),
        ({"zero_data": True, "random_data": True}, "zero_data and random_data"),
        ({"zero_data": True, "input_data_file": "a"}, "zero_data and input_data_file"),
    ],
)
def test_a_warmup_input_has_exactly_one_source(sources, found):
    with pytest.raises(PyTritonBadParameterError, match=f"WarmupInput has {found}; set exactly one"):
        WarmupInput(np.float32, (1,), **sources)


@pytest.mark.parametrize("shape", [(-1,), (2, 0), 3, ("a",)], ids=repr)
def test_a_warmup_input_has_a_fixed_shape(shape):
    with pytest.raises(PyTritonBadParameterError, match=r"WarmupInput.shape is .*; write a positive integer"):
        WarmupInput(np.float32, shape, zero_data=True)


@pytest.mark.parametrize("overrides", [{"name": ""}, {"batch_size": 0}, {"count": -1}, {"inputs": {"a": 3}}], ids=repr)
def test_a_warmup_with_an_invalid_value_is_refused(overrides):
    with pytest.raises(PyTritonBadParameterError, match=f"ModelWarmup.{next(iter(overrides))}"):
        ModelWarmup(**{"name": "a", "batch_size": 1, "inputs": {}, "count": 1, **overrides})


@pytest.mark.parametrize(("arguments", "limit"), [({"max_batch_size": 4}, 4), ({"batching": False}, 1)], ids=repr)
def test_a_warmup_batch_over_the_maximum_is_refused(arguments, limit):
    with pytest.raises(PyTritonModelConfigError, match=f"batch_size 5, over the {limit} of its model"):
        ModelConfig(**arguments, model_warmup=[ModelWarmup("a", 5, {}, 1)])


def test_importing_the_package_imports_no_client_and_no_bfloat16():
    code = (
        "import sys, pytriton.model_config; print([m for m in ('tritonclient', 'ml_dtypes', 'grpc', 'google.protobuf')"
    )
    code += " if m in sys.modules and 'pytriton.client' not in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("setting", ["batching", "response_cache", "decoupled", "gpu_tensors"])
def test_text_for_a_boolean_field_is_refused(setting):
    with pytest.raises(PyTritonBadParameterError, match=rf"ModelConfig\.{setting} is 'false'; use True or False\."):
        ModelConfig(**{setting: "false"})


def test_a_number_for_a_boolean_field_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"ModelConfig\.batching is 8; use True or False\."):
        ModelConfig(8)


def test_the_error_for_a_batch_size_of_0_suggests_batching_false():
    with pytest.raises(
        PyTritonBadParameterError, match=r"max_batch_size is 0; .*, or batching=False for a model without"
    ):
        ModelConfig(max_batch_size=0)


@pytest.mark.parametrize("seconds", [0, -1, "1", True, float("nan"), float("inf")])
def test_a_watchdog_without_a_positive_time_is_refused(seconds):
    with pytest.raises(PyTritonBadParameterError, match=rf"watchdog_secs is {seconds!r}; use a positive number"):
        ModelConfig(watchdog_secs=seconds)


@pytest.mark.parametrize("warmups", [True, 1, "zeros"])
def test_warmups_other_than_a_list_are_refused(warmups):
    with pytest.raises(PyTritonBadParameterError, match=rf"model_warmup is {warmups!r}; use a list"):
        ModelConfig(model_warmup=warmups)


@pytest.mark.parametrize("sizes", [[2, 4], (2, 4), np.array([2, 4])], ids=repr)
def test_preferred_batch_sizes_may_be_any_sequence(sizes):
    assert DynamicBatcher(preferred_batch_size=sizes).preferred_sizes == [2, 4]
