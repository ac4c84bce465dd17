"""Models from type hints: inputs and outputs, read from a function's annotations."""

from __future__ import annotations

from pytriton.type_hints.declaration import DeclaredModel, declared_models, model
from pytriton.type_hints.function import define

__all__ = ["DeclaredModel", "declared_models", "define", "model"]
