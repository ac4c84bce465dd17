"""A client that waits for its responses."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pytriton.client.base import BaseModelClient
from pytriton.client.core import fork_safety
from pytriton.client.core.background import BackgroundThreads
from pytriton.client.core.cancellable_sleep import Pauses
from pytriton.client.core.deadlines import in_seconds
from pytriton.client.core.failures import server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, Options, options_of
from pytriton.client.core.sansio import Steps, run
from pytriton.client.core.session import Session
from pytriton.client.core.transports import blocking_transport
from pytriton.client.exceptions import Failure, PyTritonClientError, PyTritonClientTimeoutError
from pytriton.model_config.triton_model_config import TritonModelConfig

_Self = TypeVar("_Self", bound="ModelClient")
T = TypeVar("T")


class ModelClient(BaseModelClient):
    """Sends requests to a model, and waits for its responses. Any number of threads may use one.

    It accepts the arguments of `BaseModelClient`. Use it as a context manager, or call `close` at the end.

    Examples:
        >>> with ModelClient("localhost", "AddSub") as client:  # doctest: +SKIP
        ...     client.infer_sample(a=np.float32([1, 2]), b=np.float32([3, 4]))
        {'add': array([4., 6.], dtype=float32), 'sub': array([-2., -2.], dtype=float32)}
    """

    def __enter__(self: _Self) -> _Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client can no longer be used. Requests of other threads fail."""
        self._closed = True
        self._release()

    def wait_for_server(self, timeout_s: float | None) -> None:
        """Waits until the server is ready, whether or not its models are.

        Args:
            timeout_s: How long to wait, in seconds; None is the default of ``init_timeout_s``.

        Raises:
            PyTritonClientTimeoutError: It was not ready in time.
        """
        self._check_open()
        self._run(self._session.wait_until_ready(timeout_s, model=False))

    def wait_for_model(self, timeout_s: float | None) -> None:
        """Waits until the model is ready.

        Args:
            timeout_s: How long to wait, in seconds; None is the default of ``init_timeout_s``.

        Raises:
            PyTritonClientTimeoutError: The server was not ready in time.
            PyTritonClientModelNotReadyError: The server was ready, but the model was not, or failed to load.
        """
        self._check_open()
        self._run(self._session.wait_until_ready(timeout_s))

    def load_model(self, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads the model.

        Args:
            config: Its configuration as JSON, instead of that in the server's repository.
            files: Contents of its files, by ``file:<path>``, instead of those in the repository.

        Raises:
            PyTritonClientInferenceServerError: The server cannot do so, or requires a token.
            PyTritonClientTimeoutError: It took longer than ``init_timeout_s``.
        """
        self._check_open()
        self._run(self._session.load(config, files))

    def unload_model(self) -> None:
        """Unloads the model.

        Raises:
            PyTritonClientInferenceServerError: The server cannot do so, or requires a token.
            PyTritonClientTimeoutError: It took longer than ``init_timeout_s``.
        """
        self._check_open()
        self._run(self._session.unload())

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration; it is fetched once, as soon as the model is ready.

        It can still be read when the client is closed, if it was fetched before.

        Raises:
            PyTritonClientTimeoutError: The server was not ready within ``init_timeout_s``.
            PyTritonClientModelUnavailableError: The server was ready, but not the model.
            PyTritonClientInferenceServerError: The server does not provide it.
        """
        config = self._session.config
        if config is None or not self._closed:
            self._check_open()
            self._prepare()
            config = self._session.config
            assert config is not None
        return config

    @property
    def is_batching_supported(self) -> bool:
        """Whether the model supports batches; raises the errors of `model_config`."""
        return self.model_config.batching

    def infer_sample(
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
    ) -> dict[str, Array]:
        """Sends a request with one sample.

        Args:
            inputs: The inputs, in the model's order, without the batch dimension: arrays, numbers, strings, lists of
                these, or anything with ``__array__`` or ``__dlpack__``.
            parameters: Parameters for the model.
            headers: Headers of HTTP, or gRPC's metadata.
            outputs: Names of the requested outputs; all by default.
            request_id: The request's id in the server's log.
            priority: 1 is the highest.
            timeout_s: How long to wait for the response, instead of ``inference_timeout_s``. It is passed to the
                server, too.
            named_inputs: The inputs by name, instead of `inputs`. An input takes precedence over an option of the same
                name, from `outputs` to `timeout_s`.

        Returns:
            The outputs by name, arrays without the batch dimension.

        Raises:
            PyTritonClientInputError: The inputs do not fit the model; nothing was sent.
            PyTritonClientValueError: An option has an invalid value; nothing was sent.
            PyTritonClientTimeoutError: There was no response in time.
            PyTritonClientModelUnavailableError: The model was not ready within ``init_timeout_s``.
            PyTritonClientInferenceServerError: The server or the model failed, or the connection broke.
            PyTritonClientClosedError: The client is closed.
        """
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return self._infer(inputs, named_inputs, options, batch=False)

    def infer_batch(
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
    ) -> dict[str, Array]:
        """Sends a request with a batch. Arguments and errors are those of `infer_sample`.

        Args:
            inputs: The inputs, in the model's order, whose first dimension is the batch.
            parameters: Parameters for the model.
            headers: Headers of HTTP, or gRPC's metadata.
            outputs: Names of the requested outputs; all by default.
            request_id: The request's id in the server's log.
            priority: 1 is the highest.
            timeout_s: How long to wait for the response, instead of ``inference_timeout_s``. It is passed to the
                server, too.
            named_inputs: The inputs by name, instead of `inputs`.

        Returns:
            The outputs by name, arrays whose first dimension is the batch.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model does not support batches.
        """
        options = options_of(parameters, headers, outputs, request_id, priority, timeout_s)
        return self._infer(inputs, named_inputs, options, batch=True)

    def _infer(
        self, inputs: Sequence[Any], named_inputs: dict[str, Any], options: Options | None, batch: bool
    ) -> dict[str, Array]:
        request = self._request(inputs, named_inputs, options, batch)  # may create another session
        return self._run(self._session.infer(request))

    def _request(
        self, inputs: Sequence[Any], named_inputs: dict[str, Any], options: Options | None, batch: bool
    ) -> EncodedRequest:
        if self._closed or self._process is not fork_safety.process or not self._session.prepared:
            self._check_open()
            self._prepare()
        return self._checked_rows(self._session.request(inputs, named_inputs, options, batch))

    def _make_session(self, config: TritonModelConfig | None) -> Session:
        self._preparing = threading.Lock()
        session, close = self._open_session(config)
        # Also when the client is garbage-collected, or the program exits: the server would keep shared memory forever.
        self._release = weakref.finalize(self, _close_in, fork_safety.process, close)
        return session

    def _open_session(self, config: TritonModelConfig | None) -> tuple[Session, Callable[[], object]]:
        """Creates the session, and a function that closes it; neither refers to the client."""
        transport_to = functools.partial(blocking_transport, options=self._settings.connect_options)
        pauses, background = Pauses(), BackgroundThreads()
        session = Session(self._settings, transport_to, pauses.sleep, _check_not_decoupled, config, background.run)
        return session, functools.partial(_close, session, pauses, background)

    def _start_over(self) -> None:
        before = self._session
        self._release.detach()
        self._session = self._make_session(before.current_config)
        self._session.prepared = before.prepared
        self._process = fork_safety.process

    def _connect(self) -> None:
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _run(self, steps: Steps[T]) -> T:
        return run(steps)

    def _prepare(self) -> None:
        session, timeout_s = self._session, self._settings.init_timeout_s
        if session.prepared:
            return
        started = time.monotonic()
        if not self._preparing.acquire(timeout=timeout_s):
            raise PyTritonClientTimeoutError(
                f"Another thread has been waiting for model {self._settings.model_name!r} for {in_seconds(timeout_s)}."
            )
        try:
            if not session.prepared:
                self._run(session.prepare(started))
        finally:
            self._preparing.release()


def _close_in(process: object, close: Callable[[], object]) -> None:
    """Closes resources only in the process that owns them: a fork must not close them."""
    if process is fork_safety.process:
        close()


def _close(session: Session, pauses: Pauses, background: BackgroundThreads) -> None:
    pauses.end()
    with contextlib.suppress(PyTritonClientError):
        run(session.close(time.sleep))
    for server in session.servers:
        server.transport.close()
    background.wait()


def _check_not_decoupled(config: TritonModelConfig) -> None:
    if config.decoupled:
        raise server_error(
            f"Model {config.model_name!r} is decoupled: it may send any number of responses; use DecoupledModelClient.",
            Failure.REFUSED,
        )
