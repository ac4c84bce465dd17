"""The watchdog: reports calls of an inference callable that take too long."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

LOGGER = logging.getLogger(__name__)

_STDERR = 2
_LONGEST_PAUSE_S = 1.0
# The frame attributes of coroutines, async generators and generators.
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")


@dataclasses.dataclass
class _Call:
    deadline: float
    thread: int
    task: asyncio.Task[Any] | None
    is_late: bool = False


class Watchdog:
    """Reports calls of an inference callable that take too long.

    Args:
        model: The model's name.
        timeout_s: Seconds that a call, or each step of a stream, may take.
        on_hang: Called with True for each call that takes too long, and with False when that call ends, its stream
            takes a step, or at `close`.
        ends_process: Whether to kill the process if not even this thread can run, because a call does not release the
            GIL.
    """

    def __init__(
        self, model: str, timeout_s: float, on_hang: Callable[[bool], None], *, ends_process: bool = False
    ) -> None:
        self._model = model
        self._ends_process = ends_process
        self._timeout_s = timeout_s
        self._pause_s = min(timeout_s / 4, _LONGEST_PAUSE_S)
        self._on_hang = on_hang
        self._calls: dict[object, _Call] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._stderr: int | None = None  # the process's own, even if the program replaces or closes that

    def begin(self, key: object, task: asyncio.Task[Any] | None = None) -> None:
        """Notes that a call begins in this thread, or in a task.

        Args:
            key: Any object that identifies the call.
            task: The task; None for this thread.
        """
        call = _Call(time.monotonic() + self._timeout_s, threading.get_ident(), task)
        with self._lock:
            self._calls[key] = call
            if self._thread is None:
                with contextlib.suppress(OSError):  # there is none
                    self._stderr = os.dup(_STDERR)
                self._thread = threading.Thread(target=self._run, name="pytriton-watchdog", daemon=True)
                self._thread.start()
                self._set_timer()  # here: the call may hold the GIL before the thread runs

    def progress(self, key: object) -> None:
        """Notes that a stream has taken a step."""
        call = self._calls.get(key)
        if call is not None:
            call.deadline = time.monotonic() + self._timeout_s
            if call.is_late:
                self._clear([call])

    def end(self, key: object) -> None:
        """Notes that a call has ended."""
        with self._lock:
            call = self._calls.pop(key, None)
        if call is not None and call.is_late:
            self._clear([call])

    def close(self) -> None:
        """Stops watching, and clears hanging calls."""
        with self._lock:
            self._closed.set()
            calls = list(self._calls.values())
            self._calls.clear()
        self._clear(calls)

    def _clear(self, calls: Iterable[_Call]) -> None:
        with self._lock:
            late = [call for call in calls if call.is_late]
            for call in late:
                call.is_late = False
            is_last = bool(late) and not any(call.is_late for call in self._calls.values())
        for _ in late:
            self._on_hang(False)
        if is_last:
            LOGGER.warning("Model %r: no call of the inference callable hangs any more.", self._model)

    def _run(self) -> None:
        while not self._closed.wait(self._pause_s):
            self._set_timer()
            now = time.monotonic()
            with self._lock:
                late = [call for call in self._calls.values() if now > call.deadline and not call.is_late]
                for call in late:
                    call.is_late = True
            for call in late:
                self._report(call)
            for _ in late:
                self._on_hang(True)
        faulthandler.cancel_dump_traceback_later()
        if self._stderr is not None:
            with contextlib.suppress(OSError):  # the program has closed it
                os.close(self._stderr)

    def _set_timer(self) -> None:
        """Has faulthandler report a call that blocks the watching thread, because it does not release the GIL."""
        if self._stderr is None:
            return
        try:
            faulthandler.dump_traceback_later(
                self._timeout_s + self._pause_s, file=self._stderr, exit=self._ends_process
            )
        except (OSError, OverflowError, RuntimeError, ValueError):
            faulthandler.cancel_dump_traceback_later()  # an earlier one would end a process that does not hang

    def _report(self, call: _Call) -> None:
        LOGGER.error(
            "Model %r: a call of the inference callable has taken more than %g s. It is here:\n%s",
            self._model,
            self._timeout_s,
            _stack_of(call).rstrip(),
        )


def _stack_of(call: _Call) -> str:
    if call.task is not None:
        return _stack_of_coroutine(call.task.get_coro())
    frame = sys._current_frames().get(call.thread)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"


def _stack_of_coroutine(coroutine: Any) -> str:
    """Formats the stack of a coroutine and its awaitables; `asyncio.Task.print_stack` only has the first frame."""
    frames = []
    while coroutine is not None:
        frame = next((getattr(coroutine, name) for name in _FRAMES if hasattr(coroutine, name)), None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        coroutine = next((getattr(coroutine, name) for name in _AWAITED if hasattr(coroutine, name)), None)
    return "".join(traceback.StackSummary.extract(iter(frames)).format())
