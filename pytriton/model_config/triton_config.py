"""Triton's own configuration of a model: the message ``ModelConfig`` of its protocol, as a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytriton.model_config.common import DynamicBatcher, ModelWarmup, QueuePolicy
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_model_config import media_type_parameter

BACKEND_NAME = "pytriton"
BUILDS_BATCHES = "pytriton_builds_batches"
"""The parameter of a model whose batches the backend builds.

Counterpart of ``backend/model_instance/instance.cc`` and ``backend/guard/model_config.cc``.
"""

Message = dict[str, Any]
"""A protobuf message: values are numbers, booleans, strings, messages, or lists and maps of these."""

_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


class EnumValue(str):
    """The name of a value of a protobuf enumeration: a string in JSON, a bare word in the text format."""

    __slots__ = ()


class MessageMap(dict[Any, Message]):
    """A protobuf map: an object in JSON, a list of keys and values in the text format."""


def triton_model_config(
    spec: ModelSpec,
    parameters: Mapping[str, str] = _NO_PARAMETERS,
    versions: Sequence[int] = (),
    *,
    builds_batches: bool = False,
) -> Message:
    """Builds the model configuration that Triton reads; it can be serialized to JSON.

    A scalar input or output (``shape=()``) has ``dims: [1]``, because Triton has no tensors without dimensions. With
    batching, ``reshape`` removes that dimension on the way to the backend, and adds it on the way back; without
    batching, Triton does not allow such a reshape, and the backend sees shape ``[1]``.

    Args:
        spec: The model.
        parameters: Additional parameters for the backend.
        versions: The versions to serve; empty for Triton's default, the latest.
        builds_batches: Whether the backend can build the batches. It does so for a batcher with default settings;
            Triton then needs no batcher, and hands over each request as it arrives.

    Returns:
        The configuration.
    """
    config = spec.config
    message: Message = {
        "name": spec.name,
        "backend": BACKEND_NAME,
        "max_batch_size": int(config.max_batch_size) if config.batching else 0,
    }
    if versions:
        message["version_policy"] = {"specific": {"versions": _numbers(versions)}}
    if spec.inputs:
        message["input"] = [_tensor(tensor, config.batching, optional=bool(tensor.optional)) for tensor in spec.inputs]
    message["output"] = [_tensor(tensor, config.batching, optional=False) for tensor in spec.outputs]
    message["instance_group"] = [{"count": int(spec.instances), "kind": EnumValue("KIND_CPU")}]
    if config.batching and config.batcher is not None:
        batcher = _dynamic_batching(config.batcher)
        if builds_batches and batcher == _dynamic_batching(DynamicBatcher()):
            parameters = {**parameters, BUILDS_BATCHES: "yes"}
        else:
            message["dynamic_batching"] = batcher
    if config.response_cache:
        message["response_cache"] = {"enable": True}
    if config.decoupled:
        message["model_transaction_policy"] = {"decoupled": True}
    if config.model_warmup:
        message["model_warmup"] = [_warmup(each, spec) for each in config.model_warmup]
    parameters = {**parameters, **_media_types("input", spec.inputs), **_media_types("output", spec.outputs)}
    message["parameters"] = MessageMap({key: {"string_value": value} for key, value in parameters.items()})
    return message


def _media_types(kind: str, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Returns the media types as parameters of the model: its configuration has no field for them."""
    return {
        media_type_parameter(kind, str(tensor.name)): tensor.media_type
        for tensor in tensors
        if tensor.media_type is not None
    }


def _tensor(tensor: Tensor, batching: bool, *, optional: bool) -> Message:
    message: Message = {
        "name": str(tensor.name),
        "data_type": EnumValue(tensor.datatype.config_name),
        "dims": _numbers(tensor.shape or (1,)),
    }
    if batching and not tensor.shape:
        message["reshape"] = {"shape": []}
    if optional:
        message["optional"] = True
    return message


def _dynamic_batching(batcher: DynamicBatcher) -> Message:
    # Present even when empty: its presence is what turns dynamic batching on.
    message: Message = {}
    if batcher.preferred_sizes:
        message["preferred_batch_size"] = _numbers(batcher.preferred_sizes)
    message["max_queue_delay_microseconds"] = int(batcher.max_queue_delay_microseconds)
    message["preserve_ordering"] = bool(batcher.preserve_ordering)
    if batcher.priority_levels:
        message["priority_levels"] = int(batcher.priority_levels)
        message["default_priority_level"] = int(batcher.default_priority_level)
    if batcher.default_queue_policy is not None:
        message["default_queue_policy"] = _queue_policy(batcher.default_queue_policy)
    policies = batcher.priority_queue_policy or {}
    message["priority_queue_policy"] = MessageMap(
        {int(level): _queue_policy(policy) for level, policy in policies.items()}
    )
    return message


def _queue_policy(policy: QueuePolicy) -> Message:
    return {
        "timeout_action": EnumValue(policy.timeout_action.value),
        "default_timeout_microseconds": int(policy.default_timeout_microseconds),
        "allow_timeout_override": bool(policy.allow_timeout_override),
        "max_queue_size": int(policy.max_queue_size),
    }


def _warmup(warmup: ModelWarmup, spec: ModelSpec) -> Message:
    """Returns a warm-up of zeros, which the worker replaces: Triton repeats one sample, and requires all inputs."""
    inputs = MessageMap()
    for tensor in spec.inputs:
        data = warmup.inputs.get(str(tensor.name))
        if data is None and tensor.optional:
            continue
        shape = [max(dim, 1) for dim in tensor.shape] if data is None else data.shape
        inputs[str(tensor.name)] = {
            "data_type": EnumValue(tensor.datatype.config_name),
            "dims": _numbers(tuple(shape) or (1,)),
            "zero_data": True,
        }
    return {
        "name": warmup.name,
        "batch_size": int(warmup.batch_size),
        "inputs": inputs,
        "count": int(warmup.count),
    }


def _numbers(values: Sequence[int]) -> list[int]:
    return [int(value) for value in values]
