"""Model instances in processes of their own: asked for in `Triton.bind`, started, watched and started again."""

from __future__ import annotations

from pytriton.process.instance import ProcessInstance

__all__ = ["ProcessInstance"]
