"""The common base of `Triton` and `RemoteTriton`: binds, deploys, serves and stops models."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pytriton.announcement import announcement, summary
from pytriton.decorators.ordering import FunctionT
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.json_logs import follow_environment
from pytriton.model_config.arguments import check_path
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor
from pytriton.models.changes import ModelChanges
from pytriton.models.definition import InferenceSource, ModelDefinition
from pytriton.models.description import ModelDescription
from pytriton.models.model import BoundModel
from pytriton.process.instance import FactoryInstance
from pytriton.proxy.context import MODEL
from pytriton.run_options import run_options
from pytriton.served_gateway import start_gateway
from pytriton.server.lifecycle import DEFAULT_POLICY, TritonLifecyclePolicy
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer
from pytriton.server_report import ServerReport
from pytriton.server_session import ServerSession
from pytriton.type_hints.binding import resolve
from pytriton.type_hints.declaration import declare
from pytriton.utils.console import tell
from pytriton.utils.interpreter_exit import let_threads_hang_at_exit
from pytriton.utils.numbers import check_seconds
from pytriton.utils.signals import wake_on_signals
from pytriton.utils.workspace import Workspace

if TYPE_CHECKING:
    from pytriton.client.in_process import AsyncioInProcessClient, InProcessClient
    from pytriton.gateway import GatewayConfig
    from pytriton.gateway.server import GatewayServer

LOGGER = logging.getLogger("pytriton.triton")

_LOWEST_PORT = 1024  # of a program without privileges
MONITORING_PERIOD_S = 10.0

let_threads_hang_at_exit(prefix="pytriton-")

_Self = TypeVar("_Self", bound="TritonBase")


class TritonBase:
    """Binds inference callables to a server: the common base of `Triton` and `RemoteTriton`.

    Args:
        url: The server's URL: ``host``, ``host:port``, ``http://...`` or ``grpc://...``.
        workspace: The folder for sockets and, for a local server, the model repository.
        triton_lifecycle_policy: When a local server starts, and how it gets its models.
        access_token: The server's token, if its repository API requires one.
    """

    def __init__(
        self,
        url: str,
        workspace: Workspace | str | os.PathLike[str] | None = None,
        triton_lifecycle_policy: TritonLifecyclePolicy = DEFAULT_POLICY,
        access_token: str | None = None,
    ) -> None:
        follow_environment()
        if not isinstance(workspace, Workspace):
            check_path(f"{type(self).__name__}: workspace", workspace)
        self._url = url
        self._access_token = access_token
        self._session = ServerSession(self._open, workspace, triton_lifecycle_policy, self.stop)
        self._gateway: GatewayServer | None = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def bind(
        self,
        model_name: str | Callable[..., Any],
        infer_func: InferenceSource | Sequence[InferenceSource] | ModelDefinition | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: list[str] | None = None,
    ) -> None:
        """Binds an inference callable to a model name.

        If the server is running, the model is loaded before this returns; otherwise `run`, `serve` or `connect` loads
        it. Inside ``with``, the first 16 models are loaded immediately. The others are loaded together by the next of
        these calls, which is much faster, or one by one if none follows within a second.

        Binding the same name and version again replaces the model.

        Args:
            model_name: The model's name, as in ``/v2/models/<model_name>/infer``. Or just a function with type hints,
                which also gives the model its name.
            infer_func: A callable that takes the list of requests of a batch and returns a list of responses.
                Decorators such as `batch` adapt other functions, and so do type hints if inputs or outputs are not
                given. A list of callables creates as many instances, which share the load. A `ProcessInstance` in place
                of a callable creates an instance in a process of its own, a `pytriton.ray.RemoteInstance` one on
                another machine. A `ModelDefinition`, which the adapters return, includes its inputs, outputs and
                settings.
            inputs: The inputs, in order; those without a name are called ``INPUT_1``, ``INPUT_2``, … They replace those
                of a `ModelDefinition` or of type hints, and so do outputs and ``config``.
            outputs: The outputs, in order; those without a name are called ``OUTPUT_1``, ``OUTPUT_2``, …
            model_version: The model's version.
            config: Batching and more; ``ModelConfig()`` by default.
            strict: Refuse outputs whose shape or dtype is not the declared one, instead of warning or converting them.
            trace_config: Accepted for compatibility; use ``TritonConfig(trace_config=...)``.

        Raises:
            PyTritonBadParameterError: An argument has an invalid value.
            PyTritonModelConfigError: Arguments contradict each other, or another version of the model.
            PyTritonInvalidOperationError: The server refuses the model, or the factory of an instance fails.
            PyTritonRuntimeError: The model's files cannot be written, or the server has ended and stays down.
        """
        model_name, definition = resolve(model_name, infer_func, inputs, outputs, config)
        source = definition.infer_func
        infer_funcs = [source] if callable(source) or isinstance(source, FactoryInstance) else [*source]
        infer_funcs = run_options().workers(infer_funcs)
        spec = ModelSpec.create(
            model_name,
            definition.inputs,
            definition.outputs,
            version=model_version,
            config=definition.config,
            instances=len(infer_funcs),
            strict=strict,
        )
        self._check(spec)
        self._session.add(BoundModel(spec, infer_funcs))

    def unbind(self, model_name: str, model_version: int | None = None) -> None:
        """Removes a model, and unloads it if the server is running; other models are not affected.

        New requests to the model are refused from now on. The call returns when those in flight have been served, or
        after the exit timeout. Within an inference callable, it does not wait.

        Args:
            model_name: The model's name.
            model_version: Its version; None is every version.

        Raises:
            PyTritonBadParameterError: No such model is bound.
            PyTritonInvalidOperationError: The server cannot unload the model.

        Examples:
            >>> triton.unbind("Double")  # doctest: +SKIP
        """
        removed = self._session.remove(model_name, model_version)
        if MODEL.get(None) is None:  # an inference callable cannot wait for itself
            self._session.wait_until_served(removed)

    @property
    def models(self) -> tuple[ModelDescription, ...]:
        """The bound models, in the order in which they were bound.

        Examples:
            >>> [model.name for model in triton.models]  # doctest: +SKIP
            ['Double']
        """
        return tuple(map(ModelDescription.of, self._session.models))

    def take_models(self, other: TritonBase) -> ModelChanges:
        """Binds the models of another object, which has started nothing, in place of its own.

        Models that are the same in both are not affected. The other object represents the same server from then on.

        Args:
            other: An object of the same class.
        """
        changes = self._session.replace_models(other._session.models)
        other.__dict__ = self.__dict__  # functions that refer to it must find the server
        return changes

    def is_same_as(self, other: TritonBase) -> bool:
        """Returns whether another object represents the same server, see `take_models`."""
        return self._session is other._session

    @overload
    def model(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def model(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        max_batch_size: int | None = None,
        config: ModelConfig | None = None,
        model_version: int = 1,
        strict: bool = False,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def model(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        max_batch_size: int | None = None,
        config: ModelConfig | None = None,
        model_version: int = 1,
        strict: bool = False,
    ) -> Any:
        """Binds a function with type hints as a model, as a decorator; the function stays as it is.

        If a first dimension is named ``batch``, the function is called once per batch, otherwise once per request.
        Arguments that have a default or may be None are optional inputs; iterators declare streams.

        Args:
            function: The function.
            name: The model's name; that of the function by default.
            max_batch_size: Samples that a batch may have, for a function whose arrays have the dimension ``batch``.
            config: Further settings.
            model_version: The model's version.
            strict: Check the shapes and dtypes of outputs against the type hints.

        Raises:
            PyTritonBadParameterError: A type hint is missing, or does not describe a tensor.
            PyTritonModelConfigError: The settings contradict the type hints.
            PyTritonInvalidOperationError: The running server refuses the model.

        Examples:
            >>> @triton.model(max_batch_size=64)  # doctest: +SKIP
            ... def double(x: Float32[np.ndarray, "batch n"]) -> Float32[np.ndarray, "batch n"]:
            ...     return x * 2
        """

        def bind(bound: FunctionT) -> FunctionT:
            declared = declare(
                bound,
                name=name,
                max_batch_size=max_batch_size,
                config=config,
                model_version=model_version,
                strict=strict,
            )
            declared.bind(self)
            return bound

        return bind if function is None else bind(function)

    def connect(self) -> None:
        """Waits until the server is ready, and loads the models that are bound.

        Raises:
            PyTritonRuntimeError: The server cannot be started or reached, or has ended.
            PyTritonInvalidOperationError: The server refuses a model.
        """
        with self._session.lock:
            self._session.open(self._session.connect())

    def run(self) -> None:
        """Starts the server if it is not running, and returns when all models are ready to serve.

        Raises:
            PyTritonRuntimeError: The server cannot be started or reached, or ended while starting.
            PyTritonInvalidOperationError: The server refuses a model.
        """
        with self._session.lock:
            server = self._session.connect()
            try:
                server.load_repository()
            except PyTritonInvalidOperationError:
                self.stop()
                raise
            self._session.open(server)
            self._session.runs = True

    def run_behind_gateway(self) -> None:
        """Does what `run` does, but with Triton's own ports on loopback only, as `serve` does for its gateway.

        Does nothing if `run` was called before.
        """
        with self._session.lock:
            if not self._session.runs:
                self._listen_on_loopback()
                self.run()

    def serve(
        self,
        monitoring_period_s: float = MONITORING_PERIOD_S,
        *,
        gateway: GatewayConfig | None = None,
        announce: bool = True,
    ) -> None:
        """Serves until Ctrl-C, SIGTERM or `stop`; stops before it returns.

        Args:
            monitoring_period_s: How often, in seconds, to check whether the server still responds. The exit of a local
                server is noticed at once.
            gateway: Serve the models through a gateway, too: as JSON, for the internet. Triton's own ports then listen
                on loopback only, unless `TritonConfig` sets their addresses.
            announce: Report where each model is served: as INFO of the logger ``pytriton.triton`` or, in a program that
                has not configured logging, on standard error.

        Raises:
            PyTritonBadParameterError: An argument has an invalid value.
            PyTritonRuntimeError: The server exited unexpectedly and stays down, or requests in flight were lost because
                they took longer than the exit timeout.
            PyTritonUnrecoverableError: An inference callable raised it.
        """
        check_seconds("serve: monitoring_period_s", monitoring_period_s)
        if monitoring_period_s >= _LOWEST_PORT:
            LOGGER.warning(
                "serve: monitoring_period_s is %s seconds. If that is a port, set it by "
                "Triton(config=TritonConfig(http_port=...)).",
                monitoring_period_s,
            )
        self._session.check_unrecoverable()
        gateway = run_options().note_serve(gateway)
        if gateway is not None:
            self._listen_on_loopback()
        session = self._session
        with session.lock:  # an inference callable may stop the server as soon as it is ready
            self.run()
            server = session.server
        assert server is not None
        with wake_on_signals(session.woken) as allow_interrupts:
            try:
                if gateway is not None:
                    self._gateway = start_gateway(self, gateway)
                if announce:
                    if not (session.models or server.repository_models()):
                        LOGGER.warning("No model is bound yet: call bind() before serve().")
                    gateway_url = None if self._gateway is None else self._gateway.url
                    tell(LOGGER, announcement(self.models, server, self.report.ready_models, gateway_url))
                failed = session.wait(server, monitoring_period_s)
            finally:
                allow_interrupts()
                if server is session.server:
                    self.stop()
        session.check_end(server, failed)

    def stop(self) -> bool:
        """Unloads the models, and stops a local server; requests in flight may finish within the exit timeout.

        From now on, the server reports that it is not ready, and refuses new requests with status 503. With
        ``TritonConfig.drain_secs``, it still accepts requests for that time.

        An inference callable may call this. Then the call returns at once, and the server stops when the callable has
        returned.

        Returns:
            Whether there was anything to stop.
        """
        if self._session.is_forked:
            return False  # the server is the parent's
        if MODEL.get(None) is not None:  # an inference callable, which cannot wait for itself
            server = self._session.server
            threading.Thread(target=self.stop, name="pytriton-stop", daemon=True).start()
            return server is not None
        gateway = self._gateway
        if gateway is not None:
            gateway.drain()
        self._session.drain()
        if gateway is not None:
            gateway.stop(self._session.exit_timeout_s)
            self._gateway = None  # only now: after an interrupt, stop() can be called again
        return self._session.stop()

    def client(
        self,
        model_name: str,
        model_version: int | None = None,
        *,
        inference_timeout_s: float = 60.0,
        convert_dtypes: bool = False,
    ) -> InProcessClient:
        """Returns a client of a model, for this process: requests go through shared memory, without a network.

        Args:
            model_name: The model's name: any model of the server, provided that at least one is bound here.
            model_version: Its version; None is the latest.
            inference_timeout_s: How long a response may take, in seconds.
            convert_dtypes: Convert arrays of another dtype if no value can change, such as int32 to int64.

        Raises:
            PyTritonClientModelUnavailableError: The model is not ready.
            PyTritonClientInferenceServerError: The server is not running.
            PyTritonClientValueError: An argument has an invalid value.

        Examples:
            >>> triton.client("Double").infer_sample([1.0, 2.0])  # doctest: +SKIP
            {'doubled': array([2., 4.], dtype=float32)}
        """
        from pytriton.client.in_process import InProcessClient

        return InProcessClient(self._session, model_name, model_version, inference_timeout_s, convert_dtypes)

    async def aclient(
        self,
        model_name: str,
        model_version: int | None = None,
        *,
        inference_timeout_s: float = 60.0,
        convert_dtypes: bool = False,
    ) -> AsyncioInProcessClient:
        """Returns a client of a model for asyncio; arguments and errors are those of `client`.

        Examples:
            >>> client = await triton.aclient("Double")  # doctest: +SKIP
            >>> await client.infer_sample([1.0, 2.0])  # doctest: +SKIP
            {'doubled': array([2., 4.], dtype=float32)}
        """
        from pytriton.client.in_process import AsyncioInProcessClient

        return await asyncio.to_thread(
            AsyncioInProcessClient, self._session, model_name, model_version, inference_timeout_s, convert_dtypes
        )

    @property
    def report(self) -> ServerReport:
        """The server's own report: its version, its models and their statistics."""
        return self._session.report

    @property
    def server_version(self) -> str | None:
        """The version of the Triton server, like ``2.51.0``; None before it runs."""
        return self.report.version

    def __repr__(self) -> str:
        """Describes the server's state, its URLs and the models, one line each."""
        return summary(type(self).__name__, self.models, self._session.server)

    def is_alive(self) -> bool:
        """Returns whether the server, or its process if it is a local one, is running."""
        server = self._session.server
        return server is not None and server.is_alive()

    def is_connected(self) -> bool:
        """Returns whether the server responds and accepts requests."""
        return self._session.is_connected()

    def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready, as ``/v2/health/ready`` does.

        Examples:
            >>> triton.is_ready()  # doctest: +SKIP
            True
        """
        return self._session.is_ready()

    def _check(self, spec: ModelSpec) -> None:
        """Checks that a model fits the server's settings."""

    def _open(self, _: Workspace) -> LocalServer | RemoteServer:
        """Returns the server to which models are deployed."""
        run_options().check_start()
        return RemoteServer(self._url, self._access_token)

    def _listen_on_loopback(self) -> None:
        """Makes a local server listen on loopback only, unless its settings specify addresses."""
