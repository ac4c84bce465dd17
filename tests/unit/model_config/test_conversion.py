"""Settings of classes that another package has declared, as Triton Model Navigator does."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np
import pytest

from pytriton import model_config
from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.model_spec import ModelSpec


class TimeoutAction(enum.Enum):
    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclasses.dataclass
class QueuePolicy:
    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclasses.dataclass
class DynamicBatcher:
    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] | None = None
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] | None = None


@dataclasses.dataclass
class ModelConfig:
    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher = dataclasses.field(default_factory=DynamicBatcher)


@dataclasses.dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    dtype: type
    name: str | None = None
    optional: bool = False


def test_objects_of_other_classes_become_those_of_this_package():
    policy = QueuePolicy(TimeoutAction.DELAY, 5, max_queue_size=7)
    batcher = DynamicBatcher(3, [2], 1, 1, default_queue_policy=policy, priority_queue_policy={1: policy})
    spec = ModelSpec.create(
        "M",
        [Tensor((-1, 3), np.float32, "x", optional=True)],
        [Tensor((1,), bytes)],
        config=ModelConfig(max_batch_size=8, batcher=batcher),
    )
    own_policy = model_config.QueuePolicy(model_config.TimeoutAction.DELAY, 5, max_queue_size=7)
    assert spec.inputs == (model_config.Tensor((-1, 3), np.float32, "x", optional=True),)
    assert spec.outputs == (model_config.Tensor((1,), bytes, "OUTPUT_1"),)
    assert spec.config == model_config.ModelConfig(
        max_batch_size=8,
        batcher=model_config.DynamicBatcher(
            3,
            [2],
            priority_levels=1,
            default_priority_level=1,
            default_queue_policy=own_policy,
            priority_queue_policy={1: own_policy},
        ),
    )


def test_their_values_are_checked():
    with pytest.raises(PyTritonModelConfigError, match="preferred_batch_size has 16"):
        ModelSpec.create("M", [], [], config=ModelConfig(batcher=DynamicBatcher(preferred_batch_size=[16])))


def test_a_class_with_other_fields_is_refused():
    other = dataclasses.make_dataclass("Tensor", [("dims", tuple)])
    with pytest.raises(PyTritonBadParameterError, match=r"use a pytriton\.model_config\.Tensor"):
        ModelSpec.create("M", [other((1,))], [])
