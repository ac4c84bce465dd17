"""The common base of `Triton` and `RemoteTriton`: binds, deploys, serves and stops models."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pytriton.decorators.ordering import FunctionT
from pytriton.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
)
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.models.definition import InferenceSource, ModelDefinition
from pytriton.models.manager import Deployment, ModelManager
from pytriton.models.model import BoundModel
from pytriton.models.store import FolderStore, UploadStore
from pytriton.process.instance import ProcessInstance
from pytriton.proxy.context import MODEL
from pytriton.proxy.registry import Registry
from pytriton.proxy.services.client import ServerClient
from pytriton.server.lifecycle import DEFAULT_POLICY, TritonLifecyclePolicy
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer
from pytriton.server.state import ServerState
from pytriton.server_report import NOT_RUNNING, ServerReport
from pytriton.type_hints.binding import resolve
from pytriton.type_hints.declaration import declare
from pytriton.utils.interpreter_exit import let_threads_hang_at_exit
from pytriton.utils.signals import wake_on_signals
from pytriton.utils.workspace import Workspace

if TYPE_CHECKING:
    from pytriton.client.in_process import AsyncioInProcessClient, InProcessClient
    from pytriton.gateway import GatewayConfig
    from pytriton.gateway.server import GatewayServer

LOGGER = logging.getLogger("pytriton.triton")

MONITORING_PERIOD_S = 10.0

_DEFAULT_EXIT_TIMEOUT_S = 25  # Kubernetes kills after 30 s

_DOWN = (ServerState.STOPPED, ServerState.RESTARTING)  # the server loads its models when it starts

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
        self._url = url
        self._access_token = access_token
        self._policy = triton_lifecycle_policy
        self._workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        self._exit_timeout_s: float = _DEFAULT_EXIT_TIMEOUT_S
        self._models = ModelManager()
        self._server: LocalServer | RemoteServer | None = None
        self._registry: Registry | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._woken = threading.Event()  # serve() has something to look at
        self._unrecoverable: PyTritonUnrecoverableError | None = None
        self._supervised: LocalServer | RemoteServer | None = None
        self._generation = 0  # counts changes of models, and starts of the server
        self._runs = False  # `run` was called
        self._gateway: GatewayServer | None = None
        self._lost: list[str] = []  # models with requests that the last stop did not wait for

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

        If the server is running, the model is loaded before this returns; otherwise `run` and `serve` load it. Binding
        the same name and version again replaces the model.

        Args:
            model_name: The model's name, as in ``/v2/models/<model_name>/infer``. Or just a function with type hints,
                after which the model is named.
            infer_func: Takes the list of requests of a batch and returns a list of responses; decorators such as
                `batch` adapt other functions, and so do type hints if inputs or outputs are not given. A list of
                callables creates as many instances, which share the load. A `ProcessInstance` in place of a callable
                creates an instance in a process of its own. A `ModelDefinition`, which the adapters return, brings its
                inputs, outputs and settings with it.
            inputs: The inputs, in order; those without a name are called ``INPUT_1``, ``INPUT_2``, … Given here, they
                count in place of those of a `ModelDefinition` or of type hints, and so do outputs and ``config``.
            outputs: The outputs, in order; those without a name are called ``OUTPUT_1``, ``OUTPUT_2``, …
            model_version: The model's version.
            config: Batching and more; ``ModelConfig()`` by default.
            strict: Check the shapes of outputs against their declaration, besides dtype and number of dimensions.
            trace_config: Accepted for compatibility; use ``TritonConfig(trace_config=...)``.

        Raises:
            PyTritonBadParameterError: An argument has a value that cannot work.
            PyTritonModelConfigError: Arguments contradict each other, or another version of the model.
            PyTritonInvalidOperationError: The server refuses the model, or the factory of a `ProcessInstance` fails.
            PyTritonRuntimeError: The model's files cannot be written, or the server has ended and stays down.
        """
        model_name, definition = resolve(model_name, infer_func, inputs, outputs, config)
        source = definition.infer_func
        infer_funcs = [source] if callable(source) or isinstance(source, ProcessInstance) else [*source]
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
        with self._lock:
            self._add(spec, infer_funcs)

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
            strict: Check the shapes of outputs against the type hints.

        Raises:
            PyTritonBadParameterError: A type hint is missing, or stands for no tensor.
            PyTritonModelConfigError: The settings contradict the type hints.
            PyTritonInvalidOperationError: The server runs, and refuses the model.

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
        with self._lock:
            self._connect().open_gate()

    def run(self) -> None:
        """Starts the server if it does not run, and returns when all models are ready to serve.

        Raises:
            PyTritonRuntimeError: The server cannot be started or reached, or ended while starting.
            PyTritonInvalidOperationError: The server refuses a model.
        """
        with self._lock:
            server = self._connect()
            try:
                server.load_repository()
            except PyTritonInvalidOperationError:
                self.stop()
                raise
            server.open_gate()
            self._runs = True

    def run_behind_gateway(self) -> None:
        """Does what `run` does, with Triton's own ports on loopback alone, as `serve` does for its gateway.

        Does nothing if `run` was called before.
        """
        with self._lock:
            if not self._runs:
                self._listen_on_loopback()
                self.run()

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S, *, gateway: GatewayConfig | None = None) -> None:
        """Serves until Ctrl-C, SIGTERM or `stop`; stops before it returns.

        Args:
            monitoring_period_s: How often, in seconds, to check whether the server still responds. The exit of a local
                server is noticed at once.
            gateway: Serve the models through a gateway, too: as JSON, for the internet. Triton's own ports then listen
                on loopback alone, unless `TritonConfig` names their addresses.

        Raises:
            PyTritonRuntimeError: The server exited unexpectedly and stays down, or requests in flight were lost because
                they took longer than the exit timeout.
            PyTritonUnrecoverableError: An inference callable raised it.
        """
        if gateway is not None:
            self._listen_on_loopback()
        self.run()
        server = self._server
        assert server is not None
        failed = False
        try:
            if gateway is not None:
                self._start_gateway(gateway)
            with wake_on_signals(self._woken):
                while server is self._server and not server.state.has_failed:
                    if self._woken.wait(monitoring_period_s):
                        self._woken.clear()
                        break
                    if not self.is_connected():
                        LOGGER.warning("The server has not responded for a while.")
            failed = server is self._server and server.state.has_failed  # before stop() changes the state
        finally:
            if server is self._server:
                self.stop()
        if self._unrecoverable is not None:
            error, self._unrecoverable = self._unrecoverable, None
            raise error
        if failed:
            raise PyTritonRuntimeError(server.exit_report())
        if self._lost:
            raise PyTritonRuntimeError(self._loss())

    def stop(self) -> bool:
        """Unloads the models, and stops a local server; running callables may finish within the exit timeout.

        New requests are refused as unavailable from now on, and the server says that it is not ready. With
        ``TritonConfig.drain_secs``, it only says so for that time, and still accepts requests.

        An inference callable may call this: it returns at once then, and the server stops when the callable is done.

        Returns:
            Whether there was anything to stop.
        """
        if os.getpid() != self._owner:
            return False  # in a fork, which must not stop the parent's server
        if MODEL.get(None) is not None:  # an inference callable, which cannot wait for itself
            server = self._server
            threading.Thread(target=self.stop, name="pytriton-stop", daemon=True).start()
            return server is not None
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.stop(self._exit_timeout_s)
        if (restarting := self._server) is not None:
            restarting.abandon()
        with self._lock:
            server, self._server = self._server, None
            registry, self._registry = self._registry, None
            self._runs = False
            if server is None or registry is None:
                return False
            server.drain()
            server.prepare_to_stop(self._exit_timeout_s)
            deadline = time.monotonic() + self._exit_timeout_s
            self._lost = self._models.undeploy(deadline, unload=server.is_alive())
            if self._lost:
                LOGGER.error("%s", self._loss())
            self._models.close(deadline)
            server.stop()
            registry.close()
            self._workspace.clean()
            atexit.unregister(self.stop)
            self._woken.set()
            return True

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
            model_name: The model's name: one that is bound, or another of the server's, provided that one is bound.
            model_version: Its version; None is the latest.
            inference_timeout_s: How long a response may take, in seconds.
            convert_dtypes: Convert arrays of another dtype if no value can change, such as int32 to int64.

        Raises:
            PyTritonClientModelUnavailableError: The model is not ready.
            PyTritonClientInferenceServerError: The server does not run.
            PyTritonClientValueError: An argument has a value that cannot work.

        Examples:
            >>> triton.client("Double").infer_sample([1.0, 2.0])  # doctest: +SKIP
            {'doubled': array([2., 4.], dtype=float32)}
        """
        from pytriton.client.in_process import InProcessClient

        return InProcessClient(_ServerAccess(self), model_name, model_version, inference_timeout_s, convert_dtypes)

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
            AsyncioInProcessClient,
            _ServerAccess(self),
            model_name,
            model_version,
            inference_timeout_s,
            convert_dtypes,
        )

    @property
    def report(self) -> ServerReport:
        """What the server reports of itself and of its models."""
        return ServerReport(self._models, lambda: self._server)

    @property
    def server_version(self) -> str | None:
        """The version of the Triton server, like ``2.51.0``; None before it runs."""
        return self.report.version

    def is_alive(self) -> bool:
        """Returns whether the server, or its process if it is a local one, is running."""
        server = self._server
        return server is not None and server.is_alive()

    def is_connected(self) -> bool:
        """Returns whether the server responds and accepts requests."""
        server = self._server
        return server is not None and server.is_alive() and server.control.is_live()

    def _connect(self) -> LocalServer | RemoteServer:
        """Returns the server, once it is ready and the models are loaded; called with the lock held."""
        if self._server is None:
            self._start()
        server, registry = self._server, self._registry
        assert server is not None
        assert registry is not None
        state = server.state
        if state is ServerState.FAILED:
            raise PyTritonRuntimeError(server.exit_report())
        if state is ServerState.RESTARTING and not self._recover(server):
            raise PyTritonRuntimeError("The server is being stopped.")
        if server.state is not ServerState.READY or not self._models.is_deployed:
            try:
                server.wait_until_ready()
                if not self._models.is_deployed:
                    self._deploy(server, registry)
            except (PyTritonRuntimeError, PyTritonInvalidOperationError):
                self.stop()
                raise
        if server.is_restarted and self._supervised is not server:
            self._supervised = server
            threading.Thread(target=self._supervise, args=(server,), name="pytriton-supervisor", daemon=True).start()
        return server

    def _add(self, spec: ModelSpec, infer_funcs: Sequence[Callable[..., Any] | ProcessInstance]) -> None:
        """Adds a model, and loads it if there is a server, which may end meanwhile; called with the lock held."""
        self._generation += 1
        if self._server is not None:
            self._connect()
        try:
            self._models.add(BoundModel(spec, infer_funcs))
        except PyTritonInvalidOperationError:
            if self._server is None or not self._server.notice_end():
                raise
            self._connect()
            self._models.add(BoundModel(spec, infer_funcs))
        if self._server is not None and self._server.state is ServerState.RESTARTING:
            self._connect()
        self._generation += 1

    def _supervise(self, server: LocalServer | RemoteServer) -> None:
        """Brings the server back each time that it ends by itself."""
        while server.wait_for_end():
            with self._lock:
                if self._server is not server or server.state.has_failed:
                    return
                if server.state is not ServerState.RESTARTING:
                    continue  # `_connect` was faster
                try:
                    if not self._recover(server):
                        return
                except (PyTritonRuntimeError, PyTritonInvalidOperationError) as error:
                    LOGGER.error("%s", error)
                    self._woken.set()
                    return

    def _recover(self, server: LocalServer | RemoteServer) -> bool:
        """Brings back a server that has ended by itself, with all models; called with the lock held.

        Returns:
            Whether it is ready; False if it is being stopped.
        """

        def deploy() -> list[str]:
            self._models.undeploy(deadline=0, unload=False)
            assert self._registry is not None
            self._deploy(server, self._registry)
            return self._names()

        return server.restart(deploy)

    def _loss(self) -> str:
        names = ", ".join(map(repr, self._lost))
        return f"Requests to {names} took longer than the exit timeout of {self._exit_timeout_s:g} s and are lost."

    def _names(self) -> list[str]:
        return list(dict.fromkeys(model.spec.name for model in self._models))

    def _on_exit(self) -> None:
        """Called when the server's process has ended."""
        server = self._server
        if server is None or not server.is_restarted:
            self._woken.set()

    def _start(self) -> None:
        self._workspace.create()
        self._woken.clear()
        sockets = self._workspace.path / "sockets"
        sockets.mkdir(mode=0o700, exist_ok=True)
        registry = Registry(sockets)
        try:
            server = self._open()
            if self._policy.local_model_store:
                self._deploy(server, registry)
                server.start([*self._names(), *server.repository_models()])
            else:
                server.start()
        except BaseException:
            self._models.undeploy(deadline=0, unload=False)
            self._models.close(deadline=0)
            registry.close()
            raise
        self._server = server
        self._registry = registry
        atexit.register(self.stop)

    def _check(self, spec: ModelSpec) -> None:
        """Checks that a model fits the server's settings."""

    def _open(self) -> LocalServer | RemoteServer:
        """Returns the server to which models are deployed."""
        return RemoteServer(self._url, self._access_token)

    def _listen_on_loopback(self) -> None:
        """Has a local server listen where other machines do not reach it, unless its settings say otherwise."""

    def _start_gateway(self, config: GatewayConfig) -> None:
        try:
            from pytriton.gateway import Gateway
            from pytriton.gateway.server import GatewayServer
        except ImportError as error:
            raise PyTritonRuntimeError(str(error)) from error
        gateway = GatewayServer(Gateway(self, config), config)
        gateway.start()
        self._gateway = gateway

    def _services(self, timeout_s: float) -> ServerClient:
        """See `pytriton.client.in_process.Server`."""
        registry = self._registry
        if registry is None or self._server is None:
            raise PyTritonInvalidOperationError(NOT_RUNNING)
        return registry.services.client(timeout_s)

    def _deploy(self, server: LocalServer | RemoteServer, registry: Registry) -> None:
        store = (
            FolderStore(server.repository, server.control, lambda: server.state not in _DOWN)
            if isinstance(server, LocalServer)
            else UploadStore(server.control)
        )
        self._models.deploy(Deployment(store, registry, server.control, self._on_unrecoverable, self._on_hang))

    def _on_hang(self, model: str, hangs: bool) -> None:
        server = self._server
        if server is not None:
            server.set_hanging(model, hangs)

    def _on_unrecoverable(self, error: PyTritonUnrecoverableError) -> None:
        LOGGER.error("An inference callable raised PyTritonUnrecoverableError; the server is shut down: %s", error)
        self._unrecoverable = error
        # Not in this thread: it is the worker's, for which stop() waits.
        threading.Thread(target=self.stop, name="pytriton-stop", daemon=True).start()


class _ServerAccess:
    """What clients in this process see of the server."""

    def __init__(self, triton: TritonBase) -> None:
        self.services = triton._services
        self._triton = triton

    @property
    def generation(self) -> int:
        return self._triton._generation

    def model_config(self, name: str, version: int | None) -> TritonModelConfig:
        config = self._triton.report.configuration(name, version)
        return TritonModelConfig.from_dict(config, None if version is None else str(version))
