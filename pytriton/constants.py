"""Numbers and names shared by the whole package."""

from __future__ import annotations

import os
import pathlib
import tempfile


def _home() -> pathlib.Path:
    try:
        return pathlib.Path(os.environ.get("PYTRITON_HOME") or tempfile.gettempdir())
    except FileNotFoundError:  # no folder can be written, and clients need none
        return pathlib.Path("/tmp")


DEFAULT_HTTP_PORT = 8000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002
DEFAULT_SAGEMAKER_PORT = 8080
DEFAULT_VERTEX_AI_PORT = 8080
PYTRITON_HOME = _home()
TRITON_LOCAL_IP = "127.0.0.1"
TRITON_PYTHON_BACKEND_INTERPRETER_DIRNAME = "python_backend_interpreter"
TRITON_CONTEXT_FIELD_NAME = "triton_context"
DEFAULT_TRITON_STARTUP_TIMEOUT_S = 120
CREATE_TRITON_CLIENT_TIMEOUT_S = 10
TRITON_ACCESS_HEADER = "triton-access-token"
MODEL_URL = "/v2/models/{model_name}"
MODEL_READY_URL = f"{MODEL_URL}/ready/"
MODEL_CONFIG_URL = f"{MODEL_URL}/config/"
MODEL_INFER_URL = f"{MODEL_URL}/infer/"
