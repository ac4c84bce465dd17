"""The module ``c_python_backend_utils``, under which some models import the classes of `pb_utils`.

Worker processes have it under that name. New models use ``triton_python_backend_utils``, which has all of it and more.
"""

from __future__ import annotations

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
from pytriton.python_backend.inference import ResponseIterator
from pytriton.python_backend.logger import Logger, LogLevel
from pytriton.python_backend.metrics import Metric, MetricFamily
from pytriton.python_backend.models import is_model_ready, load_model, unload_model
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
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "Metric",
    "MetricFamily",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]
