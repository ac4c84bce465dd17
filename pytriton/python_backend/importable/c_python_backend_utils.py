"""``import c_python_backend_utils`` in the processes that a model starts, which have the worker's import path."""

import importlib
import sys

import triton_python_backend_utils  # noqa: F401  (it finds the package)

sys.modules[__name__] = importlib.import_module(f"pytriton.python_backend.{__name__}")
