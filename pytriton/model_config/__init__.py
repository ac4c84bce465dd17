"""Models: their tensors, their settings, and the configuration that Triton reads."""

from __future__ import annotations

from pytriton.model_config.common import DeviceKind, DynamicBatcher, QueuePolicy, TimeoutAction
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.pbtxt import model_config_pbtxt
from pytriton.model_config.tensor import Tensor

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelConfig",
    "ModelSpec",
    "QueuePolicy",
    "Tensor",
    "TimeoutAction",
    "model_config_pbtxt",
]
