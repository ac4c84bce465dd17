"""Decorators that adapt inference callables.

`fill_optionals` and `group_by_keys` take a list of requests and go above ``@batch`` or ``@sample``. `group_by_values`,
`pad_batch` and `first_value` take arrays and go below. `triton_context` may go anywhere. A wrong order raises an error
when the decorator is applied. All of them preserve the kind of the function: a coroutine function stays one, and so do
generator functions of both kinds.
"""

from __future__ import annotations

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.array import ConstantPadder, first_value, group_by_values, pad_batch
from pytriton.decorators.context import triton_context
from pytriton.decorators.custom import (
    InferenceRequest,
    InferenceRequests,
    InferenceResult,
    InferenceResults,
    InputNames,
    convert_output,
    get_inference_request_batch_size,
    get_model_config,
    get_triton_context,
)
from pytriton.decorators.request import batch, fill_optionals, group_by_keys, sample
from pytriton.exceptions import PyTritonBadParameterError as PyTritonBadParameterError
from pytriton.exceptions import PyTritonRuntimeError as PyTritonRuntimeError
from pytriton.exceptions import PyTritonValidationError as PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig as TritonModelConfig
from pytriton.proxy.context import ModelConfigDict, TritonContext

__all__ = [
    "TRITON_CONTEXT_FIELD_NAME",
    "ConstantPadder",
    "InferenceRequest",
    "InferenceRequests",
    "InferenceResult",
    "InferenceResults",
    "InputNames",
    "ModelConfigDict",
    "TritonContext",
    "batch",
    "convert_output",
    "fill_optionals",
    "first_value",
    "get_inference_request_batch_size",
    "get_model_config",
    "get_triton_context",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]
