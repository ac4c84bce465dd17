"""Coroutines that inference callables return."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

_Result = TypeVar("_Result")


class WrappingAwaitable(Awaitable[_Result]):
    """Awaits a coroutine that awaits another one; closes both if nothing has awaited it.

    A coroutine that is closed before it starts does not close the one that it would have awaited, and Python warns that
    the latter was never awaited.

    Args:
        outer: The coroutine that awaits the other one.
        awaited: The other coroutine, or any awaitable.
    """

    def __init__(self, outer: Coroutine[Any, Any, _Result], awaited: Awaitable[Any]) -> None:
        self._outer = outer
        self._awaited: Awaitable[Any] | None = awaited

    def __await__(self) -> Generator[Any, None, _Result]:
        self._awaited = None  # the outer coroutine owns it now, and drops it early
        return self._outer.__await__()

    def close(self) -> None:
        """Closes both coroutines."""
        self._outer.close()
        close_unstarted(self._awaited)


def close_unstarted(returned: object) -> None:
    """Closes a coroutine that nothing has awaited; does nothing with other objects."""
    if isinstance(returned, (Coroutine, WrappingAwaitable)):
        returned.close()


def run_in_loop(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Awaits an awaitable in the event loop of another thread; returns its result or raises its exception.

    Raises:
        RuntimeError: The loop is closed.
    """
    import asyncio

    coroutine = _awaited(awaitable)
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        close_unstarted(awaitable)
        raise
    return future.result()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
