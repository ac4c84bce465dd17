"""Calls the inference callable of a remote instance, in its actor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn, TypeVar

from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError
from pytriton.process.payload import created
from pytriton.proxy.context import MODEL
from pytriton.proxy.services.client import CURRENT_CALLER
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.wire.service import NO_BATCH
from pytriton.proxy.worker.execution_mode import (
    CallableKind,
    callable_kind,
    is_deferred,
    requests_for,
)
from pytriton.ray.instances.messages import (
    Loaded,
    NotLoaded,
    ReceivedBatch,
    Reply,
    SentBatch,
    failed,
    reply_to_batch,
    reply_to_step,
)
from pytriton.utils.error_text import summary_of, traceback_of

LOGGER = logging.getLogger(__name__)

_AHEAD = 16  # buffered steps of a stream
_END = object()

_Result = TypeVar("_Result")


class _NoServer:
    """Replaces the client with which a function calls other models."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # of Python itself
            raise AttributeError(name)
        raise PyTritonInvalidOperationError(
            "This function runs in a RemoteInstance, and an actor has no connection to the server: call other models "
            "with pytriton.client.ModelClient and the server's address."
        )


_NO_SERVER: Any = _NoServer()


class _Job:
    """A batch that is being served.

    Attributes:
        batch: The batch.
        task: The task that serves it, if it can be cancelled.
    """

    def __init__(self, batch: ReceivedBatch) -> None:
        self.batch = batch
        self.task: asyncio.Task[Any] | None = None


class InstanceHost:
    """Creates the inference callable of one instance, and calls it.

    The factory, and a callable that is neither a coroutine nor a generator, always run in the same thread. Generators
    get a thread each; coroutines share the actor's event loop.

    Args:
        name: The instance's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = _new_thread()
        self._free_threads: list[concurrent.futures.ThreadPoolExecutor] = []  # for generators
        self._jobs: dict[int, _Job] = {}
        self._infer_func: Callable[..., Any] = _not_loaded
        self._kind = CallableKind.FUNCTION
        self._requests_of: Callable[[Batch], Any] = Batch.requests

    async def load(self, payload: bytes) -> Loaded | NotLoaded:
        """Creates the inference callable.

        Args:
            payload: The payload of an `InstanceSpec`.
        """
        try:
            await self._in_thread(self._thread, lambda: self._load(payload))
        except BaseException as error:  # including SystemExit
            return NotLoaded(summary_of(error), traceback_of(error, error.__traceback__))
        return Loaded(self._kind.is_async, self._kind.yields)

    async def infer(self, sent: SentBatch) -> Reply:
        """Calls the inference callable with a batch.

        Args:
            sent: The batch.
        """
        with self._job(sent) as job:
            if not self._kind.is_async:
                return await self._infer(job.batch)
            task = asyncio.ensure_future(self._infer(job.batch))
            job.task = task
            return await task

    async def stream(self, sent: SentBatch) -> AsyncIterator[Reply]:
        """Calls an inference callable that may send several responses to a request.

        Args:
            sent: The batch.
        """
        with self._job(sent) as job:
            steps: asyncio.Queue[Reply | None] = asyncio.Queue(_AHEAD)
            job.task = asyncio.ensure_future(self._stream(job.batch, steps))
            try:
                while (reply := await steps.get()) is not None:
                    yield reply
            finally:  # no more responses are requested
                job.batch.mark_cancelled(range(job.batch.request_count))
                job.task.cancel()
                while not steps.empty():
                    steps.get_nowait()

    def cancel(self, number: int, requests: list[int]) -> None:
        """Marks requests of a batch as cancelled, and ends its call once all are.

        Args:
            number: The batch's number.
            requests: The indices of the requests.
        """
        job = self._jobs.get(number)
        if job is None:
            return
        job.batch.mark_cancelled(requests)
        if self._kind.is_async and not job.batch.is_wanted and job.task is not None:
            job.task.cancel()

    async def close(self) -> None:
        """Ends running calls, and calls the callable's method ``close``."""
        for job in self._jobs.values():
            job.batch.mark_cancelled(range(job.batch.request_count))
            if self._kind.is_async and job.task is not None:
                job.task.cancel()
        close = getattr(self._infer_func, "close", None)
        if callable(close):
            try:
                await self._in_thread(self._thread, close)
            except BaseException:
                LOGGER.exception("The method close of %s failed.", self._name)

    def _load(self, payload: bytes) -> None:
        spec, infer_func = created(payload)
        if is_deferred(infer_func):
            raise PyTritonBadParameterError(
                f"Model {spec.name!r}: a callable that responds after it has returned cannot run in an actor; use "
                "ProcessInstance."
            )
        self._signature = Signature(spec)
        self._model = spec.name
        self._kind = callable_kind(infer_func)
        self._requests_of = requests_for(infer_func)
        self._infer_func = infer_func

    @contextlib.contextmanager
    def _job(self, sent: SentBatch) -> Iterator[_Job]:
        job = self._jobs[sent.number] = _Job(ReceivedBatch(sent, self._signature))
        MODEL.set(self._signature.spec)
        CURRENT_CALLER.set((_NO_SERVER, NO_BATCH))
        try:
            yield job
        finally:
            del self._jobs[sent.number]

    async def _infer(self, batch: ReceivedBatch) -> Reply:
        try:
            returned = (
                self._call(batch) if self._kind.is_async else await self._in_thread(self._thread, self._call, batch)
            )
            if inspect.isawaitable(returned):
                returned = await returned
            return reply_to_batch(returned, batch)
        except BaseException as error:  # of any kind, caught here: SystemExit would end the loop
            return failed(error, self._model)

    def _call(self, batch: ReceivedBatch) -> Any:
        return self._infer_func(self._requests_of(batch))

    async def _stream(self, batch: ReceivedBatch, steps: asyncio.Queue[Reply | None]) -> None:
        error: BaseException | None = None
        is_generator = self._kind is CallableKind.GENERATOR
        thread = self._thread
        if is_generator:
            thread = self._free_threads.pop() if self._free_threads else _new_thread()
        try:
            returned = self._call(batch) if self._kind.is_async else await self._in_thread(thread, self._call, batch)
            if inspect.isawaitable(returned):
                returned = await returned
            if hasattr(returned, "__aiter__"):
                await self._iterate_async(returned, batch, steps)
            elif hasattr(returned, "__next__"):
                loop = asyncio.get_running_loop()
                await self._in_thread(thread, self._iterate, returned, batch, steps, loop)
            else:
                await steps.put(reply_to_step(returned, batch, is_last=True))
        except BaseException as caught:  # of any kind: the requests need a response
            error = caught
        if is_generator:
            self._free_threads.append(thread)
        if error is not None and batch.is_wanted:
            await steps.put(failed(error, self._model))
        await steps.put(None)

    async def _iterate_async(self, returned: Any, batch: ReceivedBatch, steps: asyncio.Queue[Reply | None]) -> None:
        try:
            async for step in returned:
                await steps.put(reply_to_step(step, batch))
                if not batch.is_wanted:
                    break
                await asyncio.sleep(0)
        finally:
            if hasattr(returned, "aclose"):
                await returned.aclose()

    def _iterate(
        self,
        returned: Any,
        batch: ReceivedBatch,
        steps: asyncio.Queue[Reply | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        try:
            for step in returned:
                asyncio.run_coroutine_threadsafe(steps.put(reply_to_step(step, batch)), loop).result()
                if not batch.is_wanted:
                    break
        finally:
            if hasattr(returned, "close"):
                returned.close()

    @staticmethod
    async def _in_thread(
        thread: concurrent.futures.ThreadPoolExecutor, function: Callable[..., _Result], *args: Any
    ) -> _Result:
        context = contextvars.copy_context()

        def run() -> tuple[_Result | None, BaseException | None]:
            try:
                return context.run(function, *args), None
            except BaseException as error:  # including StopIteration, which a future does not accept
                return None, error

        result, error = await asyncio.get_running_loop().run_in_executor(thread, run)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


def _new_thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, "pytriton-instance")


def _not_loaded(*_: object) -> NoReturn:
    raise PyTritonInvalidOperationError("This instance has not been loaded.")
