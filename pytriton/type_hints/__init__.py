"""Models from type hints: what a function takes and returns, read off its annotations."""

from __future__ import annotations

from pytriton.type_hints.declaration import DeclaredModel, declared_models, model
from pytriton.type_hints.function import define

__all__ = ["DeclaredModel", "declared_models", "define", "model"]
