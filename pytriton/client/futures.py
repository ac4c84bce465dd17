"""A client whose responses are futures."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from pytriton.client.asyncio_client import AsyncioModelClient
from pytriton.client.base import check_count
from pytriton.client.core import fork_safety
from pytriton.client.core.deadlines import in_seconds
from pytriton.client.core.inputs import Array
from pytriton.client.core.loop_thread import LoopThread
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientQueueFullError,
)
from pytriton.client.retry import RetryPolicy
from pytriton.client.tls import TLSConfig
from pytriton.client.url import ServerUrls
from pytriton.model_config.triton_model_config import TritonModelConfig

DEFAULT_MAX_WORKERS = 128
DEFAULT_MAX_QUEUE_SIZE = 128

_Self = TypeVar("_Self", bound="FuturesModelClient")
T = TypeVar("T")


class FuturesModelClient:
    """Sends requests to a model, and returns futures of its responses. Any number of threads may use one.

    Errors come through the future. Use it as a context manager, which waits for all responses, or cancels
    outstanding requests when its body raises; or call `close` at the end.

    Args:
        url: The server's URL, a list of URLs, or a function that returns one; see `BaseModelClient`, also for the
            arguments not listed here.
        model_name: The model's name.
        model_version: Its version; the latest by default.
        max_workers: Maximum number of requests in flight; None for the default.
        max_queue_size: Maximum number of further requests in the queue; None for the default.
        non_blocking: Raise `PyTritonClientQueueFullError` when the queue is full, instead of waiting for room.
        init_timeout_s: How long to wait until the model is ready, also for a server that starts later, and for a model
            that is bound later; see `ModelClient`.
        inference_timeout_s: How long to wait for a response after the request is sent; 60 s by default. A call also
            waits this long for room in the queue.

    Raises:
        PyTritonClientInvalidUrlError: The URL is not valid.
        PyTritonClientValueError: Another argument has an invalid value.

    Examples:
        >>> with FuturesModelClient("localhost", "AddSub") as client:  # doctest: +SKIP
        ...     futures = [client.infer_sample(a=[i], b=[1]) for i in range(100)]
        ...     outputs = [future.result() for future in futures]
    """

    def __init__(
        self,
        url: ServerUrls,
        model_name: str,
        model_version: str | None = None,
        *,
        max_workers: int | None = DEFAULT_MAX_WORKERS,
        max_queue_size: int | None = DEFAULT_MAX_QUEUE_SIZE,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: TLSConfig | None = None,
        retry: RetryPolicy | None = None,
        restart_timeout_s: float | None = None,
        shared_memory: bool = False,
        convert_dtypes: bool = False,
    ) -> None:
        """Stores the arguments; connects on first use."""
        max_workers = DEFAULT_MAX_WORKERS if max_workers is None else check_count("max_workers", max_workers)
        if max_queue_size is None:
            max_queue_size = DEFAULT_MAX_QUEUE_SIZE
        check_count("max_queue_size", max_queue_size)
        self._client = AsyncioModelClient(
            url,
            model_name,
            model_version,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            model_config=model_config,
            ensure_model_is_ready=ensure_model_is_ready,
            access_token=access_token,
            tls=tls,
            retry=retry,
            restart_timeout_s=restart_timeout_s,
            shared_memory=shared_memory,
            convert_dtypes=convert_dtypes,
            max_connections=max_workers,
        )
        self._non_blocking = non_blocking
        self._capacity = f"{max_workers} in flight and {max_queue_size} in the queue"
        self._room = threading.BoundedSemaphore(max_workers + max_queue_size)
        self._turns = asyncio.Semaphore(max_workers)
        self._max_workers = max_workers
        self._outstanding: set[object] = set()
        self._counting = threading.Lock()
        self._closed = self._aborted = False
        self._loop = LoopThread("pytriton-futures")
        # Also when the client is garbage-collected, or the program ends.
        self._release = weakref.finalize(self, self._loop.stop, self._client.close)

    def __enter__(self: _Self) -> _Self:
        self._check_open()
        return self

    def __reduce__(self) -> NoReturn:
        fork_safety.refuse_copy(self)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:  # outstanding results will not be retrieved
            self._closed = True
            self._release()

    def close(self, wait: bool = True) -> None:
        """Closes the client to further requests.

        Args:
            wait: Wait until all requests are complete, including those in the queue. Otherwise those in flight complete
                in the background, and those in the queue fail with `PyTritonClientClosedError`. A request is in flight
                from the call on if fewer than ``max_workers`` others are outstanding at that time.
        """
        self._closed = True
        self._aborted = self._aborted or not wait
        self._release.detach()
        self._loop.stop(self._client.close, drain=True, wait=wait)

    def wait_for_model(self, timeout_s: float | None) -> Future[None]:
        """Waits until the model is ready; see `ModelClient.wait_for_model`.

        Args:
            timeout_s: How long to wait, in seconds; None is the default of ``init_timeout_s``.

        Returns:
            A future without a value.
        """
        self._check_open()
        return self._loop.submit(lambda: self._client.wait_for_model(timeout_s))

    def model_config(self) -> Future[TritonModelConfig]:
        """Returns a future of the model's configuration, a `TritonModelConfig`; see `ModelClient.model_config`."""
        config = self._client._session.config
        if self._closed and config is not None:
            known: Future[TritonModelConfig] = Future()
            known.set_result(config)
            return known
        self._check_open()
        return self._loop.submit(self._client._prepare)

    def infer_sample(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        **named_inputs: Any,
    ) -> Future[dict[str, Array]]:
        """Sends a request with one sample.

        Args:
            inputs: As for `ModelClient.infer_sample`. They must not be changed before the response arrives.
            parameters: Parameters for the model.
            headers: Headers of HTTP, or gRPC's metadata.
            named_inputs: The inputs by name, instead of `inputs`, and the further options of
                `AsyncioModelClient.infer_sample`.

        Returns:
            A future of the outputs by name. Cancelling it cancels the request; over gRPC, its response is dropped.

        Raises:
            PyTritonClientQueueFullError: There is no room in the queue.
            PyTritonClientClosedError: The client is closed.
        """
        send = self._client.infer_sample
        return self._submit(lambda: send(*inputs, parameters=parameters, headers=headers, **named_inputs))

    def infer_batch(
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        **named_inputs: Any,
    ) -> Future[dict[str, Array]]:
        """Sends a batch of any size; see `AsyncioModelClient.infer_batch`.

        Args:
            inputs: As for `ModelClient.infer_batch`. They must not be changed before the response arrives.
            parameters: Parameters for the model.
            headers: Headers of HTTP, or gRPC's metadata.
            named_inputs: The inputs by name, instead of `inputs`, and the further options of
                `AsyncioModelClient.infer_batch`, such as ``progress=True``.

        Returns:
            A future of the outputs by name. Cancelling it cancels the request; over gRPC, its response is dropped.

        Raises:
            PyTritonClientQueueFullError: There is no room in the queue.
            PyTritonClientClosedError: The client is closed.
        """
        send = self._client.infer_batch
        return self._submit(lambda: send(*inputs, parameters=parameters, headers=headers, **named_inputs))

    def _submit(self, send: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        self._check_open()
        self._take_room()
        request = object()
        with self._counting:
            has_turn = len(self._outstanding) < self._max_workers
            self._outstanding.add(request)

        def leave(_: object = None) -> None:
            self._outstanding.discard(request)  # if the coroutine never ran
            self._room.release()

        try:
            future = self._loop.submit(lambda: self._in_turn(send, request, has_turn))
        except BaseException:
            leave()
            raise
        future.add_done_callback(leave)
        return future

    def _take_room(self) -> None:
        # The loop's own thread, which runs callbacks of futures, must not wait for itself.
        blocking = not self._non_blocking and not self._loop.is_current()
        timeout_s = self._client._settings.inference_timeout_s
        if not self._room.acquire(blocking, timeout_s if blocking else None):
            waited = f" within {in_seconds(timeout_s)}" if blocking else ""
            raise PyTritonClientQueueFullError(f"There is no room for another request{waited}: {self._capacity}.")

    async def _in_turn(self, send: Callable[[], Coroutine[Any, Any, T]], request: object, has_turn: bool) -> T:
        try:
            async with self._turns:
                if self._aborted and not has_turn:  # a request that has its turn counts as sent
                    raise PyTritonClientClosedError("The client was closed while the request was in its queue.")
                return await send()
        finally:
            self._outstanding.discard(request)  # before its future is done, so that the next one has its turn

    def _check_open(self) -> None:
        if self._closed:
            raise PyTritonClientClosedError("The client is closed; create another one.")
        self._client._check_open()  # it may belong to another process
