"""Runs work on large bodies, and functions of users, in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pytriton.client.core.inputs import Array
from pytriton.gateway.models import Reply
from pytriton.proxy.services.messages import InferenceReply

LARGE = 1 << 20
"""Bodies of more than this many bytes are large."""

_THREADS = 2  # so that one body does not wait for another; more would only compete for the GIL
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


async def run_in_thread(work: Callable[..., _ResultT], *args: Any) -> _ResultT:
    """Calls a function that may take long, such as one of a user, in a thread.

    Args:
        work: The function.
        args: Its arguments.
    """
    return await asyncio.get_running_loop().run_in_executor(_executor(), work, *args)


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


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="pytriton-gateway-bodies")


os.register_at_fork(after_in_child=_executor.cache_clear)  # threads are not forked
