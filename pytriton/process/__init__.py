"""Model instances in processes of their own."""

from __future__ import annotations

from pytriton.process.instance import ProcessInstance

__all__ = ["ProcessInstance"]
