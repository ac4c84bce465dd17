"""Work that the gateway does in threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from forked import fork

from pytriton.gateway import offload

LIMIT_S = 20

BOTH = pytest.mark.parametrize("run", [offload.run_in_thread, offload.run_function])
Run = Callable[..., Awaitable[Any]]


class Body:
    """Something large."""


@contextlib.asynccontextmanager
async def busy(run: Run) -> AsyncIterator[None]:
    """Both threads of a kind are busy."""
    begun, release = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        release.wait(LIMIT_S)

    tasks = [asyncio.ensure_future(run(work)) for _ in range(2)]
    for _ in tasks:
        assert await asyncio.to_thread(begun.acquire, timeout=LIMIT_S)
    try:
        yield
    finally:
        release.set()
        await asyncio.gather(*tasks)


@BOTH
def test_work_whose_client_disconnects_while_it_waits_is_not_kept(run: Run) -> None:
    called = []

    async def wait_and_disconnect() -> None:
        async with busy(run):
            body = Body()
            known = weakref.ref(body)
            task = asyncio.ensure_future(run(called.append, body))
            del body
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            del task
            while known() is not None:
                await asyncio.sleep(0)
        assert await run(len, "after") == 5

    asyncio.run(asyncio.wait_for(wait_and_disconnect(), LIMIT_S / 2))
    assert called == []


@pytest.mark.parametrize(
    ("first", "second"),
    [(offload.run_in_thread, offload.run_function), (offload.run_function, offload.run_in_thread)],
)
def test_bodies_and_functions_of_users_do_not_wait_for_each_other(first: Run, second: Run) -> None:
    async def main() -> None:
        async with busy(first):
            assert await asyncio.wait_for(second(len, "body"), LIMIT_S / 2) == 4

    asyncio.run(main())


@BOTH
def test_errors_and_results_of_many_calls(run: Run) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(run(divmod, 7, number) for number in range(50)), return_exceptions=True)

    error, *results = asyncio.run(main())
    assert isinstance(error, ZeroDivisionError)
    assert results == [divmod(7, number) for number in range(1, 50)]


@BOTH
def test_an_error_does_not_keep_what_the_failed_functions_have_read(run: Run) -> None:
    known = []

    def read() -> None:
        parsed = Body()
        known.append(weakref.ref(parsed))
        raise ValueError

    def fail() -> None:
        sample = Body()
        known.append(weakref.ref(sample))
        try:
            read()
        except ValueError as error:
            raise KeyError from error

    async def main() -> None:
        with pytest.raises(KeyError):
            await run(fail)
        assert [each() for each in known] == [None, None]

    asyncio.run(main())


@BOTH
def test_an_error_frees_the_body_without_garbage_collection(run: Run) -> None:
    def fail(body: Body) -> None:
        raise ValueError("no")

    async def main() -> None:
        body = Body()
        known = weakref.ref(body)
        with contextlib.suppress(ValueError):
            await run(fail, body)
        del body
        while known() is not None:
            await asyncio.sleep(0)

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), LIMIT_S / 2))
    finally:
        gc.enable()


HANG = """
import asyncio, time
from pytriton.gateway import offload

async def main():
    asyncio.ensure_future(offload.run_function(time.sleep, 1000))
    await asyncio.sleep(0)
    await offload.run_function(print, "served")

asyncio.run(main())
"""


def test_a_function_that_hangs_does_not_prevent_the_exit() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", HANG], timeout=LIMIT_S, check=True, capture_output=True, text=True
    )
    assert ended.stdout == "served\n"


def test_a_forked_child_has_threads_of_its_own() -> None:
    assert asyncio.run(offload.run_in_thread(len, "before")) == 6  # type: ignore[arg-type]
    child = fork(lambda: asyncio.run(asyncio.wait_for(offload.run_in_thread(len, "forked"), LIMIT_S)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


@pytest.mark.parametrize(
    ("body", "is_large"),
    [
        (b'[{"x":[1]}' + b',{"x":[1]}' * 9_999 + b"]", True),
        (b'{"input":[""' + b',""' * 9_999 + b"]}", True),
        (b'{"x":[' + b"1," * 50_000 + b"1]}", False),
        (b'{"messages":[{"role":"user","content":"' + b"word " * 50_000 + b'"}]}', False),
        (b'{"x":"' + b"a" * (1 << 20) + b'"}', True),
    ],
)
def test_many_samples_or_texts_take_as_long_as_a_large_body(body: bytes, is_large: bool) -> None:
    assert (offload.size_of_json(body) > offload.LARGE) == is_large
