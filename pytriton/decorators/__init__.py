"""Decorators that give inference callables the form that suits them.

Those that take a list of requests stand above ``@batch`` or ``@sample``: `fill_optionals`, `group_by_keys`. Those that
take arrays stand below: `group_by_values`, `pad_batch`, `first_value`. `triton_context` stands anywhere. A wrong order
is found when the decorator is applied. All of them keep the kind of what they wrap: a coroutine function stays one,
and so do generator functions of both kinds.
"""

from __future__ import annotations

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.array import ConstantPadder, first_value, group_by_values, pad_batch
from pytriton.decorators.context import triton_context
from pytriton.decorators.request import batch, fill_optionals, group_by_keys, sample
from pytriton.proxy.context import ModelConfigDict, TritonContext

__all__ = [
    "TRITON_CONTEXT_FIELD_NAME",
    "ConstantPadder",
    "ModelConfigDict",
    "TritonContext",
    "batch",
    "fill_optionals",
    "first_value",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]
