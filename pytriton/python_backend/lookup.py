"""Finds tensors and settings by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.python_backend.request import InferenceRequest
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.tensor import Tensor


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Returns the input of a request by its name, or None."""
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Returns the output of a response by its name, or None."""
    return _by_name(inference_response._tensors, name)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Returns an input's entry in a model configuration (a dictionary) by its name, or None."""
    return _config_by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Returns an output's entry in a model configuration (a dictionary) by its name, or None."""
    return _config_by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Returns whether a model is decoupled according to its configuration, a dictionary."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _by_name(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def _config_by_name(tensors: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    for tensor in tensors:
        if tensor.get("name") == name:
            return tensor
    return None
