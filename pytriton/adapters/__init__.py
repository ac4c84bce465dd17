"""Adapters: turn models of other libraries into a `ModelDefinition`, which `Triton.bind` takes as it is.

Each adapter imports its library when it is called.

Examples:
    >>> triton.bind("Digits", sklearn_model(classifier))  # doctest: +SKIP
    >>> triton.bind("ResNet", onnx_model("resnet.onnx"))  # doctest: +SKIP
"""

from __future__ import annotations

from pytriton.adapters.onnx import onnx_model
from pytriton.adapters.sklearn import sklearn_model
from pytriton.adapters.torch import torch_model
from pytriton.adapters.transformers import transformers_model

__all__ = ["onnx_model", "sklearn_model", "torch_model", "transformers_model"]
