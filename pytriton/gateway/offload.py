"""Runs work on large bodies, and functions of users, in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from pytriton.client.core.inputs import Array
from pytriton.gateway.models import Reply
from pytriton.proxy.services.messages import InferenceReply

LARGE = 1 << 20
"""Bodies of more than this many bytes are large."""

_PER_ITEM = 1000  # bytes that take as long as a sample or text of their own

_THREADS = 2  # of each kind, so that one body does not wait for another; more would only compete for the GIL
_MANY = 10_000  # texts; more take long to encode, or to add up their sizes

_ResultT = TypeVar("_ResultT")


async def run(size: int, work: Callable[..., _ResultT], *args: Any) -> _ResultT:
    """Calls a function; in a thread if it handles many bytes.

    Args:
        size: The number of bytes.
        work: The function.
        args: Its arguments.
    """
    return work(*args) if size <= LARGE else await run_in_thread(work, *args)


async def run_on_json(body: bytes, work: Callable[..., _ResultT], *args: Any) -> _ResultT:
    """Calls a function that parses a body of JSON; in a thread if it is large.

    Args:
        body: The body.
        work: The function.
        args: Its arguments.
    """
    return await run(size_of_json(body), work, *args)


async def run_in_thread(work: Callable[..., _ResultT], *args: Any) -> _ResultT:
    """Calls a function that takes long because its arguments are large, in a thread.

    Args:
        work: The function.
        args: Its arguments.
    """
    return await _threads("bodies").run(functools.partial(work, *args))


async def run_function(function: Callable[..., _ResultT], *args: Any) -> _ResultT:
    """Calls a function of a user, which may take long or hang, in a thread that no body waits for.

    Args:
        function: The function.
        args: Its arguments.
    """
    return await _threads("functions").run(functools.partial(function, *args))


def size_of_json(body: bytes) -> int:
    """Returns how many bytes a body of JSON takes as long as: many small samples or texts take longer than one."""
    return len(body) if len(body) > LARGE else len(body) + size_of_items(body.count(b'"') // 2)


def size_of_items(count: int) -> int:
    """Returns how many bytes a number of samples or texts takes as long as."""
    return count * _PER_ITEM


def size_of(reply: Reply) -> int:
    """Returns the approximate size of a response's outputs in bytes."""
    if isinstance(reply, InferenceReply):  # its texts have not been decoded yet
        return sum(tensor.data.nbytes for tensor in reply.tensors.values())
    return size_of_arrays(reply.outputs)


def size_of_arrays(arrays: Mapping[str, Array]) -> int:
    """Returns the approximate size of arrays in bytes."""
    return sum(map(_size_of_array, arrays.values()))


def has_many_texts(array: Array) -> bool:
    """Returns whether an array has so many texts that iterating over them takes long."""
    return array.size > _MANY and array.dtype == object


def _size_of_array(array: Array) -> int:
    if array.dtype != object:
        return array.nbytes
    return LARGE + 1 if has_many_texts(array) else sum(map(len, array.ravel().tolist()))


class _Threads:
    """A few daemon threads, since the interpreter's exit would wait for those of `concurrent.futures`.

    Args:
        name: The beginning of their names.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = 0
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()

    async def run(self, work: Callable[[], _ResultT]) -> _ResultT:
        """Calls a function once a thread is free; if this is cancelled before, nothing of the call is kept."""
        result: Future[_ResultT] = Future()
        try:
            with self._changed:
                if self._started < _THREADS:
                    threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
                    self._started += 1
                self._waiting[result] = work
                self._changed.notify()
            del work
            return await asyncio.wrap_future(result)
        finally:
            with self._changed:
                self._waiting.pop(result, None)
            del result  # an error in it would refer to it by its traceback, in a cycle

    def _work(self) -> None:
        while True:
            self._work_once()  # whose variables do not outlive the call

    def _work_once(self) -> None:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            result, work = self._waiting.popitem(last=False)
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(work())
        except BaseException as error:
            _free_variables(error)
            result.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            del result, work  # as above


def _free_variables(error: BaseException) -> None:
    """Frees what failed functions have read, which may be many times as large as the body.

    The error keeps their variables, and it may be in a cycle that is found much later.
    """
    chain: list[BaseException] = []
    raised: BaseException | None = error
    while raised is not None and raised not in chain:
        traceback.clear_frames(raised.__traceback__)
        chain.append(raised)
        raised = raised.__cause__ or raised.__context__


@functools.cache
def _threads(kind: str) -> _Threads:
    return _Threads(f"pytriton-gateway-{kind}")


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads are not forked
