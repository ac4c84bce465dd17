"""Bound models, and the manager that deploys them to the server."""

from __future__ import annotations

from pytriton.models.definition import ModelDefinition

__all__ = ["ModelDefinition"]
