"""Conversations with a server that are written once, and held by blocking and by asyncio clients.

A conversation is a generator. It yields what is to be done as functions without arguments, and gets back what they
return or raise. `run` calls them; `run_async` awaits what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Sleep: TypeAlias = Callable[[float], Any]
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]


def run(steps: Steps[T]) -> T:
    """Runs request logic to its end, performing its steps.

    Args:
        steps: The conversation, whose steps block.

    Returns:
        What it returns.
    """
    try:
        step = next(steps)
        while True:
            try:
                value = step()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def run_async(steps: Steps[T]) -> T:
    """Runs request logic to its end, performing its steps.

    Args:
        steps: The conversation, whose steps return awaitables.

    Returns:
        What it returns.
    """
    try:
        step = next(steps)
        while True:
            try:
                value = await step()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()
