"""The module that ``model.py`` imports: ``import triton_python_backend_utils as pb_utils``.

There is nothing to copy: worker processes have this module under that name, whatever lies next to ``model.py``.
"""

from __future__ import annotations

import numpy as np  # noqa: F401  (models use it as pb_utils.np)

from pytriton.python_backend.byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor
from pytriton.python_backend.config import ModelConfig
from pytriton.python_backend.datatypes import (
    TRITON_STRING_TO_NUMPY,
    numpy_to_triton_type,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.flags import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    PreferredMemory,
)
from pytriton.python_backend.logger import Logger, LogLevel
from pytriton.python_backend.lookup import (
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    using_decoupled_model_transaction_policy,
)
from pytriton.python_backend.metrics import Metric, MetricFamily
from pytriton.python_backend.models import get_model_dir, is_model_ready, load_model, unload_model
from pytriton.python_backend.request import InferenceRequest
from pytriton.python_backend.response import InferenceResponse
from pytriton.python_backend.sender import InferenceResponseSender
from pytriton.python_backend.tensor import Tensor
from pytriton.python_backend.trace import InferenceTrace

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
