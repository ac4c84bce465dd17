"""Runs several streams side by side for the requests of one batch, for ``@sample`` and the grouping decorators.

A step has one item per request, or None; ``docs/decorators.md`` describes the items.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from typing import Any

from pytriton.decorators.streams import CallScope, Stream, aclose, close, is_stream
from pytriton.exceptions import PyTritonUnrecoverableError, PyTritonValidationError
from pytriton.proxy.context import CALL_FRAME, CallFrame
from pytriton.proxy.types import Request, Response

LOGGER = logging.getLogger(__name__)

_Items = dict[int, Any]
"""Items by their position in a step."""


class SubStream:
    """One of several streams, for some of the requests.

    Args:
        stream: A plain or asynchronous generator.
        call: Its requests.
        places: The position of each request in a step; None for a request without one.
        take: Converts what the stream yields to a list with one item per request, or raises an error for these
            requests.
    """

    def __init__(
        self, stream: Any, call: CallFrame, places: Sequence[int | None], take: Callable[[Any], Sequence[Any]]
    ) -> None:
        self.stream = stream
        self.call = call
        self.stopped = False
        self._take = take
        self._places = {offset: place for offset, place in enumerate(places) if place is not None}
        members = ((offset, call[0][offset]) for offset in self._places)
        self._watched = [(offset, request) for offset, request in members if isinstance(request, Request)]
        self.wanted = set(self._places)
        """The offsets of its requests that have neither ended nor been cancelled."""

    def items_of(self, yielded: Any) -> _Items:
        """Returns the items that the stream yielded, for the requests that are still open."""
        given = self._take(yielded)
        items = {}
        for offset in tuple(self.wanted):
            item = given[offset]
            if item is not None:
                items[self._places[offset]] = item
                if isinstance(item, BaseException) or (isinstance(item, Response) and item.final):
                    self.wanted.discard(offset)
        return items

    def end(self) -> _Items:
        """Returns the items that end its requests."""
        self.wanted.clear()
        return {place: Response({}, final=True) for place in self._places.values()}

    def fail(self, error: BaseException) -> _Items:
        """Returns the items that end its requests with an error."""
        self.wanted.clear()
        return dict.fromkeys(self._places.values(), error)

    def stop(self) -> None:
        """Marks all of its requests as closed."""
        self.stopped = True
        self.wanted.clear()

    def forget_cancelled(self) -> None:
        """Returns whether all of its requests are cancelled."""
        for offset, request in self._watched:
            if request.is_cancelled():
                self._cancelled(offset)

    def watch(self, task: asyncio.Task[None]) -> list[Callable[[], None]]:
        """Cancels the task of its asynchronous stream when all of its requests are cancelled.

        Returns:
            Functions that stop watching.
        """
        loop = asyncio.get_running_loop()

        def cancelled(offset: int) -> None:
            if self._cancelled(offset):
                task.cancel()

        def from_any_thread(offset: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop, and with it the stream, is closed
                loop.call_soon_threadsafe(cancelled, offset)

        return [request._on_cancel(functools.partial(from_any_thread, offset)) for offset, request in self._watched]

    def _cancelled(self, offset: int) -> bool:
        """Notes that a request is cancelled; returns whether the stream must stop."""
        if not self.wanted:  # it has ended, and may be cleaning up
            return False
        self.wanted.discard(offset)
        if self.wanted:
            return False
        self.stop()
        return True


def interleave(sub_streams: list[SubStream], size: int, form: Callable[[list[Any]], Any] = list) -> Stream:
    """Creates a generator whose steps combine what several streams yield.

    A step of plain generators contains the next item of each. Asynchronous ones run concurrently, at most one item
    ahead, and a step contains the items that are ready. An error ends only the requests of its stream.

    Args:
        sub_streams: The streams, all of the same kind.
        size: Number of requests.
        form: Applied to each step.

    Raises:
        PyTritonValidationError: They are of different kinds.
    """
    kinds = {isinstance(sub_stream.stream, AsyncIterator) for sub_stream in sub_streams}
    if len(kinds) > 1 or not all(is_stream(sub_stream.stream) for sub_stream in sub_streams):
        names = " and ".join(sorted({type(sub_stream.stream).__name__ for sub_stream in sub_streams}))
        raise PyTritonValidationError(
            f"an inference callable returned values of different kinds for the requests of a batch, {names}: return a "
            "generator for each, or an asynchronous one for each"
        )
    return _interleave_async(sub_streams, size, form) if True in kinds else _interleave(sub_streams, size, form)


def _interleave(
    sub_streams: list[SubStream], size: int, form: Callable[[list[Any]], Any]
) -> Generator[Any, None, None]:
    live = sub_streams
    try:
        while live:
            items: _Items = {}
            for sub_stream in live:
                items.update(_advance(sub_stream))
            live = [sub_stream for sub_stream in live if sub_stream.wanted]
            if live or not _only_ends(items):
                yield form([items.get(place) for place in range(size)])
    finally:
        with contextlib.ExitStack() as closing:
            for sub_stream in sub_streams:
                closing.callback(_close, sub_stream)


def _advance(sub_stream: SubStream) -> _Items:
    sub_stream.forget_cancelled()
    if not sub_stream.wanted:
        _close(sub_stream)
        return sub_stream.end()
    try:
        with CallScope(sub_stream.call):
            items = sub_stream.items_of(next(sub_stream.stream))
    except StopIteration:
        return sub_stream.end()
    except Exception as error:
        if _is_of_everyone(error):
            raise
        items = sub_stream.fail(error)
    if not sub_stream.wanted:
        _close(sub_stream)
    return items


def _close(sub_stream: SubStream) -> None:
    try:
        with CallScope(sub_stream.call):
            close(sub_stream.stream)
    except Exception:
        _log_failure()


async def _interleave_async(
    sub_streams: list[SubStream], size: int, form: Callable[[list[Any]], Any]
) -> AsyncGenerator[Any, None]:
    board = _StepBuffer(len(sub_streams))
    tasks: list[asyncio.Task[None]] = []
    ends_of_watch: list[Callable[[], None]] = []
    try:
        for sub_stream in sub_streams:
            tasks.append(asyncio.create_task(_run(sub_stream, board)))
            ends_of_watch += sub_stream.watch(tasks[-1])
        while True:
            items = await board.take()
            if not board.running and board.failure is None and _only_ends(items):
                return
            yield form([items.get(place) for place in range(size)])
    finally:
        for end in ends_of_watch:
            end()
        for sub_stream, task in zip(sub_streams, tasks, strict=False):
            if sub_stream.wanted:  # the others are already being closed
                sub_stream.stop()
                task.cancel()
        await _finish(tasks)


class _StepBuffer:
    """Buffers the items of asynchronous streams until a step takes them."""

    def __init__(self, running: int) -> None:
        self.running = running
        self.failure: BaseException | None = None
        self.taken = asyncio.Event()
        self._items: _Items = {}
        self._changed = asyncio.Event()

    def put(self, items: _Items) -> None:
        """Adds items to the next step."""
        self._items.update(items)
        self._changed.set()

    def end(self) -> None:
        """Marks that one of the streams has ended."""
        self.running -= 1
        self._changed.set()

    async def take(self) -> _Items:
        """Waits for items and returns them; returns an empty dictionary once all streams have ended.

        Raises:
            BaseException: The failure, once all items are taken.
        """
        while not self._items and self.failure is None and self.running:
            self._changed.clear()
            await self._changed.wait()
        if not self._items and self.failure is not None:
            raise self.failure
        items, self._items = self._items, {}
        self.taken.set()
        self.taken = asyncio.Event()
        return items


async def _run(sub_stream: SubStream, board: _StepBuffer) -> None:
    """Runs a stream from start to end in one task, so that its context, timeouts and task groups span several steps."""
    CALL_FRAME.set(sub_stream.call)
    try:
        sub_stream.forget_cancelled()
        while sub_stream.wanted:
            items = sub_stream.items_of(await sub_stream.stream.__anext__())
            board.put(items)
            if sub_stream.wanted:
                await (board.taken.wait() if items else asyncio.sleep(0))
    except StopAsyncIteration:
        board.put(sub_stream.end())
    except BaseException as error:  # SystemExit as well, which would end the event loop
        if sub_stream.stopped:
            if not isinstance(error, asyncio.CancelledError):
                _log_failure()
        elif _is_of_everyone(error):
            board.failure = error
        else:
            board.put(sub_stream.fail(error))
    if sub_stream.stopped:
        board.put(sub_stream.end())
    try:
        await aclose(sub_stream.stream)
    except asyncio.CancelledError:
        pass
    except BaseException:
        _log_failure()
    board.end()


async def _finish(tasks: list[asyncio.Task[None]]) -> None:
    """Waits until tasks are done, and passes a cancellation on to them."""
    cancelled = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in pending:
                task.cancel()
    if cancelled is not None:
        raise cancelled


def _is_of_everyone(error: BaseException) -> bool:
    """Returns whether an error ends the other streams, too, because it ends the model or the program."""
    if isinstance(error, PyTritonUnrecoverableError):
        return True
    return not isinstance(error, Exception | asyncio.CancelledError)


def _only_ends(items: _Items) -> bool:
    """Returns whether items only end their requests, as the end of the generator does."""
    return all(isinstance(item, Response) and item.final and not item for item in items.values())


def _log_failure() -> None:
    LOGGER.exception("A generator failed while it was being closed; its requests have ended before.")
