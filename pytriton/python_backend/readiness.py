"""A model's own readiness check."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from pytriton.python_backend.errors import TritonModelException

TIMEOUT_S = 5.0
"""Time limit of a check, as in Triton's Python backend."""


class ReadinessCheck:
    """Calls a model's ``is_ready``, with a time limit.

    A call that takes longer continues in its thread, and the next check waits for it instead of calling again.

    Args:
        is_ready: The model's method, a function or a coroutine function.
        model: The model's name.
        timeout_s: How long to wait.

    Examples:
        >>> ReadinessCheck(lambda: True, "m")()
        True
    """

    def __init__(self, is_ready: Callable[[], Any], model: str, timeout_s: float = TIMEOUT_S) -> None:
        self._is_ready = is_ready
        self._model = model
        self._timeout_s = timeout_s
        self._running: Future[Any] | None = None

    def __call__(self) -> bool:
        """Returns whether the model is ready.

        Raises:
            TritonModelException: The check takes too long, or does not return a boolean.
            Exception: Whatever the model raises.
        """
        running = self._running or self._start()
        try:
            ready = running.result(self._timeout_s)
        except FutureTimeoutError:
            if not running.done():
                raise TritonModelException(
                    f"is_ready() of model {self._model!r} has not returned for {self._timeout_s:g} s"
                ) from None
            self._running = None
            raise
        except BaseException:
            self._running = None
            raise
        self._running = None
        if not isinstance(ready, bool):
            raise TritonModelException(
                f"is_ready() of model {self._model!r} returned {ready!r}, of type {type(ready).__name__}: return True "
                "or False"
            )
        return ready

    def _start(self) -> Future[Any]:
        future: Future[Any] = Future()
        self._running = future
        threading.Thread(target=self._run, args=(future,), name="pytriton-is-ready", daemon=True).start()
        return future

    def _run(self, future: Future[Any]) -> None:
        try:
            ready = self._is_ready()
            if inspect.isawaitable(ready):
                import asyncio

                ready = asyncio.run(_awaited(ready))
            future.set_result(ready)
        except BaseException as error:
            future.set_exception(error)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
