"""Reads inputs, outputs and settings from a model's configuration in JSON."""

from __future__ import annotations

import json
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor
from pytriton.proxy.tensors.signature import Signature
from pytriton.python_backend.datatypes import allow_bf16, triton_string_to_numpy

_BF16 = "TYPE_BF16"


def signature_of(config_json: str, version: int) -> Signature:
    """Returns the signature of a model, from its configuration.

    Args:
        config_json: The model's configuration.
        version: The model's version.

    Raises:
        PyTritonBadParameterError: The configuration declares neither inputs nor outputs, or is invalid.
    """
    config = json.loads(config_json)
    allow_bf16()
    max_batch_size = int(config.get("max_batch_size", 0))
    inputs = [_tensor(each) for each in config.get("input", ())]
    outputs = [_tensor(each) for each in config.get("output", ())]
    if not inputs and not outputs:
        raise PyTritonBadParameterError(
            f"model {config.get('name')!r} has neither inputs nor outputs in its config.pbtxt: declare them there, or "
            "in auto_complete_config"
        )
    spec = ModelSpec.create(
        config["name"],
        [*inputs, *_control_inputs(config)],
        outputs,
        version=version,
        config=ModelConfig(
            batching=max_batch_size > 0,
            max_batch_size=max(1, max_batch_size),
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
            gpu_tensors=_takes_gpu_tensors(config),
        ),
    )
    return Signature(spec, loose=True)


def _takes_gpu_tensors(config: dict[str, Any]) -> bool:
    parameter = config.get("parameters", {}).get("FORCE_CPU_ONLY_INPUT_TENSORS", {})
    return str(parameter.get("string_value", "")).lower() == "no"


def _tensor(declared: dict[str, Any]) -> Tensor:
    dims = declared.get("reshape", {}).get("shape") if "reshape" in declared else None
    shape = declared.get("dims", ()) if dims is None else dims
    dtype = "bfloat16" if declared["data_type"] == _BF16 else triton_string_to_numpy(declared["data_type"])
    return Tensor(tuple(int(dim) for dim in shape), dtype, declared["name"], bool(declared.get("optional", False)))


def _control_inputs(config: dict[str, Any]) -> list[Tensor]:
    """Returns the inputs that the server adds: start, end and readiness of a sequence, and its state."""
    sequence = config.get("sequence_batching") or {}
    controls = [Tensor((1,), "int64", each["name"], True) for each in sequence.get("control_input", ())]
    states = [
        Tensor(tuple(int(dim) for dim in each.get("dims", ())), "int64", each["input_name"], True)
        for each in sequence.get("state", ())
    ]
    return controls + states
