"""Sans-I/O request logic, shared by the blocking and the asyncio clients.

It consists of generators, which yield steps: functions without arguments. A step's result or error is sent back to the
generator. `run` calls the steps; `run_async` awaits their results.
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
        steps: The generator, whose steps block.

    Returns:
        Its return value.
    """
    try:
        step = next(steps)
        while True:
            resume: Callable[[Any], Any] = steps.send
            try:
                outcome: Any = step()
            except Exception as error:
                resume, outcome = steps.throw, error
            try:  # outside the handler, so that errors from here on are not chained to this one
                step = resume(outcome)
            finally:
                outcome = None  # an error would keep this frame, and all that it refers to, alive
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def run_async(steps: Steps[T]) -> T:
    """Runs request logic to its end, performing its steps.

    Args:
        steps: The generator, whose steps return awaitables.

    Returns:
        Its return value.
    """
    try:
        step = next(steps)
        while True:
            resume: Callable[[Any], Any] = steps.send
            try:
                outcome: Any = await step()
            except Exception as error:
                resume, outcome = steps.throw, error
            try:  # outside the handler, so that errors from here on are not chained to this one
                step = resume(outcome)
            finally:
                outcome = None  # an error would keep this frame, and all that it refers to, alive
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()
