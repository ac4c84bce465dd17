"""Functions with decorators: their types stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from pytriton.decorators import (
    TritonContext,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)

Array = NDArray[np.float32]
Outputs = dict[str, Array]


@batch
def plain(a: Array, b: Array) -> Outputs:
    return {"sum": a + b}


@batch()
def with_parentheses(a: Array) -> Outputs:
    return {"sum": a}


@batch(max_batch_size=8, max_queue_delay_microseconds=100)
@first_value("power")
def with_settings(a: Array, power: float) -> Outputs:
    return {"sum": a**power}


@sample
async def coroutine(a: Array) -> Outputs:
    return {"sum": a}


@sample()
@triton_context
def stream(a: Array, triton_context: TritonContext) -> Iterator[Outputs]:
    yield {"sum": a}


@fill_optionals(b=np.zeros(1, np.float32))
@group_by_keys
@batch
@group_by_values("b")
@pad_batch()
def everything(a: Array, b: Array) -> Outputs:
    return {"sum": a + b}


class Model:
    @batch
    def infer(self, a: Array) -> Outputs:
        return {"sum": a}


def check(array: Array) -> None:
    assert_type(plain(array, b=array), Outputs)
    assert_type(with_parentheses(array), Outputs)
    assert_type(with_settings(array, 2.0), Outputs)
    assert_type(next(stream(array, TritonContext())), Outputs)
    assert_type(everything(array, array), Outputs)
    assert_type(Model().infer(array), Outputs)


async def check_coroutine(array: Array) -> None:
    assert_type(await coroutine(array), Outputs)


plain("text", 1)  # wrong: both
with_settings(np.zeros(1, np.float32))  # wrong: one is missing
batch(max_batch_size="8")  # wrong: no number
