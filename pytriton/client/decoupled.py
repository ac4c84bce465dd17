"""A client of models that respond with streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from pytriton.client.base import BaseModelClient
from pytriton.client.core import fork_safety
from pytriton.client.core.background import BackgroundTasks
from pytriton.client.core.inputs import Array
from pytriton.client.core.loop_thread import LoopThread
from pytriton.client.core.requests import EncodedRequest, options_of
from pytriton.client.core.sansio import Steps, run_async
from pytriton.client.core.session import Session
from pytriton.client.core.streams import check_settings, check_streams, results, stream_transport
from pytriton.client.exceptions import PyTritonClientClosedError
from pytriton.client.model_client import ModelClient
from pytriton.model_config.triton_model_config import TritonModelConfig

T = TypeVar("T")


class DecoupledModelClient(ModelClient):
    """Sends requests to a decoupled model: one that sends any number of responses.

    Requires gRPC. It accepts the arguments of `BaseModelClient`. Any number of streams may be open at once, in any
    number of threads.

    Raises:
        PyTritonClientValueError: The URL is not one of gRPC.
        PyTritonClientInputError: The model is not decoupled.

    Examples:
        >>> with DecoupledModelClient("grpc://localhost", "Count") as client:  # doctest: +SKIP
        ...     for response in client.infer_sample(np.int32([3])):
        ...         print(response["number"])
    """

    def infer_sample(  # type: ignore[override]
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> Responses:
        """Sends a request with one sample, at once.

        Arguments and errors are those of `ModelClient.infer_sample`; errors of the server are raised by the iterator.
        `timeout_s` and ``inference_timeout_s`` are for each response.

        Returns:
            An iterator over the responses: the outputs by name, arrays without the batch dimension. Leaving the loop
            early, or its method ``close``, cancels the request.
        """
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return Responses(self, self._request(inputs, named_inputs, options, batch=False))

    def infer_batch(  # type: ignore[override]
        self,
        /,
        *inputs: Any,
        parameters: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str | int | float] | None = None,
        outputs: Sequence[str] | None = None,
        request_id: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        **named_inputs: Any,
    ) -> Responses:
        """Sends a request with a batch; see `infer_sample`. The arrays' first dimension is the batch."""
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return Responses(self, self._request(inputs, named_inputs, options, batch=True))

    def _open_session(self, config: TritonModelConfig | None) -> tuple[Session, Callable[[], object]]:
        check_settings(self._settings)
        self._loop = LoopThread("pytriton-streams")
        transport_to = functools.partial(stream_transport, options=self._settings.connect_options)
        check = functools.partial(check_streams, right_client="ModelClient")
        session = Session(self._settings, transport_to, asyncio.sleep, check, config, BackgroundTasks().run)
        return session, functools.partial(_close, session, self._loop)

    def _start_over(self) -> None:
        BaseModelClient._start_over(self)  # raises an error: gRPC for asyncio does not survive a fork

    def _run(self, steps: Steps[T]) -> T:
        return self._loop.run(lambda: run_async(steps))


class Responses(Generator[dict[str, Array], None, None]):
    """The responses to one request: an iterator, which can be closed like a generator.

    Args:
        client: The client, kept alive as long as the responses.
        request: The request.
    """

    def __init__(self, client: DecoupledModelClient, request: EncodedRequest) -> None:
        """Sends the request."""
        self._client = client
        self._request = request
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pump = client._loop.submit(functools.partial(_receive, client._session, request, self._received))
        self._process = fork_safety.process
        self._ended = False

    def send(self, value: None = None) -> dict[str, Array]:
        """Returns the next response, as `next` does; nothing can be sent to it."""
        if self._ended:
            raise StopIteration
        if self._process is not fork_safety.process:
            raise fork_safety.error("The stream")
        result = self._received.get()
        if result is None or isinstance(result, BaseException):
            self._ended = True
            raise StopIteration if result is None else result
        server, result = result
        return self._client._session.response(server, result, self._request)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> dict[str, Array]:
        """Cancels the request, and raises an error."""
        self.close()
        return super().throw(error, value, traceback)

    def close(self) -> None:
        """Cancels the request; the same as leaving the loop early. No response comes afterwards."""
        self._ended = True
        if self._process is fork_safety.process:
            self._pump.cancel()

    def __enter__(self) -> Responses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.close()


async def _receive(session: Session, request: EncodedRequest, received: queue.SimpleQueue[Any]) -> None:
    last: BaseException | None = PyTritonClientClosedError("The client was closed before the last response arrived.")
    try:
        async with contextlib.aclosing(results(session, request)) as all_results:
            async for result in all_results:
                received.put(result)
        last = None
    except Exception as error:
        last = error
    finally:
        received.put(last)


def _close(session: Session, loop: LoopThread) -> None:
    async def close_transports() -> None:
        for server in session.server_set.end():
            await server.transport.close()

    loop.stop(close_transports)
