"""The server of a `Triton` from its start to its stop, with the bound models deployed to it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from pytriton.exceptions import (
    PyTritonError,
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
)
from pytriton.json_logs import follow_environment
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.model_deployer import ModelDeployer
from pytriton.models.changes import ModelChanges, replace_models
from pytriton.models.draining import wait_until_served
from pytriton.models.events import ModelEvents
from pytriton.models.manager import ModelManager
from pytriton.models.model import BoundModel
from pytriton.proxy.registry import Registry
from pytriton.proxy.services.client import ServerClient
from pytriton.server.lifecycle import TritonLifecyclePolicy
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer
from pytriton.server.state import ServerState
from pytriton.server_report import NOT_RUNNING, ServerReport
from pytriton.utils.console import log_safely
from pytriton.utils.debounce import Debouncer
from pytriton.utils.signals import wait_for_event
from pytriton.utils.workspace import Workspace, private_folder

LOGGER = logging.getLogger("pytriton.triton")

_DEFAULT_EXIT_TIMEOUT_S = 25  # Kubernetes kills after 30 s
_UNATTENDED_S = 1.0  # since the last model was bound


class ServerSession:
    """Starts the server when it is needed, restarts it when it exits unexpectedly, and stops it.

    Nothing is created before `connect`, which may be called again after `stop`.

    Args:
        open_server: Returns the server, before its start; called with the workspace.
        workspace: The folder for sockets and, for a local server, the model repository; None is a temporary one.
        policy: When a local server starts, and how it gets its models.
        stop: The owner's `stop`, which calls this object's. Called at the interpreter's exit, and when an inference
            callable raises a PyTritonUnrecoverableError.
    """

    def __init__(
        self,
        open_server: Callable[[Workspace], LocalServer | RemoteServer],
        workspace: Workspace | str | os.PathLike[str] | None,
        policy: TritonLifecyclePolicy,
        stop: Callable[[], object],
    ) -> None:
        self.models = ModelManager()
        """The bound models."""
        self.server: LocalServer | RemoteServer | None = None
        """The server; None before its start and after its stop."""
        self.registry: Registry | None = None
        self.policy = policy
        self.exit_timeout_s: float = _DEFAULT_EXIT_TIMEOUT_S
        """Time limit for running callables when the server stops, in seconds."""
        self.lock = threading.RLock()
        self.woken = threading.Event()
        """Set when the server has exited or was stopped."""
        self.generation = 0
        """Counts changes of models, and starts of the server."""
        self.runs = False
        """Whether `Triton.run` was called."""
        self._is_open = False  # for clients
        self._open_server = open_server
        self._workspace = workspace
        self._stop_all = stop
        self._unrecoverable: PyTritonUnrecoverableError | None = None
        self._owner = os.getpid()
        self._lost: list[str] = []  # models with requests that the last stop did not wait for
        self._supervised: LocalServer | RemoteServer | None = None
        events = ModelEvents(self._on_unrecoverable, self._on_hang, self._on_failing)
        self._deployer = ModelDeployer(self.models, policy, events)
        self._unattended = Debouncer(_UNATTENDED_S, self._load_unattended, "pytriton-loading")
        self._load_error: PyTritonError | None = None  # of models that were loaded unattended

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that the server belongs to."""
        return os.getpid() != self._owner

    @property
    def workspace(self) -> Workspace:
        """The folder for sockets and the model repository, created when it is first needed."""
        if not isinstance(self._workspace, Workspace):
            self._workspace = Workspace(self._workspace)
        return self._workspace

    def connect(self) -> LocalServer | RemoteServer:
        """Returns the server, once it is ready and the models are loaded; called with the lock held.

        Raises:
            PyTritonRuntimeError: The server cannot be started or reached, or has exited.
            PyTritonInvalidOperationError: The server refuses a model.
        """
        server = self._ready_server()
        error, self._load_error = self._load_error, None
        try:
            if error is not None:
                raise error
            if self.models.deferred:
                assert self.registry is not None
                self._deployer.load_deferred(server, self.registry)
        except (PyTritonRuntimeError, PyTritonInvalidOperationError):
            self.stop()
            raise
        return server

    def open(self, server: LocalServer | RemoteServer) -> None:
        """Makes a local server report that it is ready; models that are added from now on are loaded at once."""
        server.open_gate()
        self._is_open = True

    def _ready_server(self) -> LocalServer | RemoteServer:
        """Returns the server once it is ready; models that were deferred are not loaded yet."""
        if self.server is None:
            self._start()
        server, registry = self.server, self.registry
        assert server is not None
        assert registry is not None
        state = server.state
        if state is ServerState.FAILED:
            raise PyTritonRuntimeError(server.exit_report())
        if state is ServerState.RESTARTING and not self._recover(server):
            raise PyTritonRuntimeError("The server is being stopped.")
        if server.state is not ServerState.READY or not self.models.is_deployed:
            try:
                server.wait_until_ready()
                self._deployer.complete(server, registry)
            except (PyTritonRuntimeError, PyTritonInvalidOperationError):
                self.stop()
                raise
        if server.is_restarted and self._supervised is not server:
            self._supervised = server
            threading.Thread(target=self._supervise, args=(server,), name="pytriton-supervisor", daemon=True).start()
        return server

    def add(self, model: BoundModel) -> None:
        """Adds a model, and loads it if there is a server, which may exit meanwhile.

        Raises:
            PyTritonModelConfigError: Another version of the model has other inputs, outputs or settings.
            PyTritonInvalidOperationError: The server refuses the model, or a process cannot create its callable.
            PyTritonRuntimeError: The model's files cannot be written, or the server has exited for good.
        """
        with self.lock:
            self.generation += 1
            if self.server is not None:
                self._ready_server()
            try:
                # `connect` loads many models together; no client waits for them yet.
                self.models.add(model, defer=not self._is_open and self._deployer.defers(self.server))
            except PyTritonInvalidOperationError:
                if self.server is None or not self.server.notice_end():
                    raise
                self.connect()
                self.models.add(model)
            if self.models.deferred:
                self._unattended.request()
            if self.server is not None and self.server.state is ServerState.RESTARTING:
                self.connect()
            self.generation += 1

    def remove(self, name: str, version: int | None = None) -> list[BoundModel]:
        """Removes a model, and unloads it if there is a server; requests in flight are still served.

        Raises:
            PyTritonBadParameterError: No such model is bound.
            PyTritonInvalidOperationError: The server cannot unload it.
        """
        with self.lock:
            self.generation += 1
            if self.server is not None:
                self._ready_server()
            try:
                return self.models.remove(name, version)
            except PyTritonInvalidOperationError:
                if self.server is None or not self.server.notice_end():
                    raise
                self.connect()  # without the model
                return []
            finally:
                self.generation += 1

    def wait_until_served(self, removed: Sequence[BoundModel]) -> None:
        """Waits until removed models have served their requests, or for the exit timeout."""
        for name in dict.fromkeys(wait_until_served(removed, time.monotonic() + self.exit_timeout_s)):
            LOGGER.warning("Model %r is unbound, but still serves earlier requests.", name)

    def drain(self) -> None:
        """Makes a local server report that it is not ready, and returns when it may stop; it still serves requests."""
        if (server := self.server) is not None:
            server.drain()

    def stop(self) -> bool:
        """Unloads the models, and stops a local server; running callables may finish within the exit timeout.

        Returns:
            Whether there was anything to stop.
        """
        if (restarting := self.server) is not None:
            restarting.abandon()
        try:
            self.models.set_stopping(True)  # another thread may hold the lock while it loads one
            with self.lock:
                self.models.set_stopping(False)
                return self._stop()
        except BaseException:  # such as KeyboardInterrupt during the wait: the server is not being stopped any more
            self.models.set_stopping(False)
            raise

    def _stop(self) -> bool:
        server, self.server = self.server, None
        registry, self.registry = self.registry, None
        self.runs = self._is_open = False
        if server is None or registry is None:
            return False
        deadline = time.monotonic() + self.exit_timeout_s
        # All of these are called, even if an earlier one raises an exception, such as KeyboardInterrupt.
        with contextlib.ExitStack() as steps:
            steps.callback(self.woken.set)
            steps.callback(atexit.unregister, self._stop_all)
            steps.callback(self.workspace.clean)
            steps.callback(registry.close)
            steps.callback(server.stop)
            steps.callback(lambda: self.models.close(deadline))
            steps.callback(self.models.undeploy, 0.0, unload=False)  # in case it was interrupted before that
            try:
                self._undeploy(server, deadline)
            except BaseException:
                deadline = 0.0
                raise
        return True

    def _undeploy(self, server: LocalServer | RemoteServer, deadline: float) -> None:
        """Makes the server refuse requests, and unloads all models; notes those with requests at the deadline."""
        server.refuse()
        server.prepare_to_stop(self.exit_timeout_s)
        self._lost = self.models.undeploy(deadline, unload=server.is_alive())
        if self._lost:
            LOGGER.error("%s", self._loss())

    def is_connected(self) -> bool:
        """Returns whether the server responds and accepts requests."""
        server = self.server
        return server is not None and server.is_alive() and server.control.is_live()

    def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready."""
        server = self.server
        return server is not None and server.is_alive() and server.control.is_ready()

    def wait(self, server: LocalServer | RemoteServer, monitoring_period_s: float) -> bool:
        """Waits until `woken` is set, or the server has stopped or failed.

        Args:
            server: The server.
            monitoring_period_s: Seconds between two checks whether it still responds.

        Returns:
            Whether it has failed.
        """
        while server is self.server and not server.state.has_failed:
            try:
                is_woken = wait_for_event(self.woken, monitoring_period_s)
            except KeyboardInterrupt:  # raised by the user's own handler of a signal
                break
            if is_woken:
                self.woken.clear()
                break
            if server is self.server and not self.is_connected():
                LOGGER.warning("The server has not responded for a while.")
        if server is not self.server:
            with self.lock:  # until the thread that stops it is done
                return False
        return server.state.has_failed

    def replace_models(self, models: Iterable[BoundModel]) -> ModelChanges:
        """Replaces the bound models, without disturbing those that stay the same.

        Args:
            models: The new models, which are not deployed yet.

        Returns:
            The changes. If a model cannot be bound, the earlier one stays bound.
        """
        with self.lock:
            return replace_models(self.models, models, add=self.add, remove=self.remove)

    def check_end(self, server: LocalServer | RemoteServer, failed: bool) -> None:
        """Raises an error if a server failed or lost requests.

        Args:
            server: The server.
            failed: What `wait` has returned.

        Raises:
            PyTritonUnrecoverableError: An inference callable raised it.
            PyTritonRuntimeError: The server failed, or requests were lost when it was stopped.
        """
        self.check_unrecoverable()
        if failed:
            raise PyTritonRuntimeError(server.exit_report())
        if self._lost:
            raise PyTritonRuntimeError(self._loss())

    def check_unrecoverable(self) -> None:
        """Raises the error by which an inference callable has stopped the server; only once.

        Raises:
            PyTritonUnrecoverableError: An inference callable raised it.
        """
        error, self._unrecoverable = self._unrecoverable, None
        if error is not None:
            raise error

    def _loss(self) -> str:
        names = ", ".join(map(repr, self._lost))
        return f"Requests to {names} took longer than the exit timeout of {self.exit_timeout_s:g} s and are lost."

    @property
    def report(self) -> ServerReport:
        """Queries the server for its version, models and statistics."""
        return ServerReport(self.models, lambda: self.server)

    def model_config(self, name: str, version: int | None) -> TritonModelConfig:
        """See `pytriton.client.in_process_server.Server`."""
        self._load_for_client()
        config = self.report.configuration(name, version)
        return TritonModelConfig.from_dict(config, None if version is None else str(version))

    def services(self, timeout_s: float) -> ServerClient:
        """See `pytriton.client.in_process_server.Server`."""
        self._load_for_client()
        registry = self.registry
        if registry is None or self.server is None:
            raise PyTritonInvalidOperationError(NOT_RUNNING)
        return registry.services.client(timeout_s)

    def _load_for_client(self) -> None:
        if self.models.deferred:
            with self.lock:
                self.connect()

    def on_exit(self) -> None:
        """Called when the server's process has exited."""
        server = self.server
        if server is None or not server.is_restarted:
            self.woken.set()

    def _load_unattended(self) -> None:
        """Loads deferred models if the program does not: clients elsewhere may wait for them."""
        with self.lock:
            if self.server is None or not self.models.deferred:
                return
            try:
                self._ready_server()
                self.models.load_deferred()
            except (PyTritonRuntimeError, PyTritonInvalidOperationError) as error:
                self._load_error = error if self.server is not None else None
                log_safely(LOGGER, logging.ERROR, "%s", error)

    def _start(self) -> None:
        follow_environment()  # the program may have configured logging since
        self._unrecoverable = self._load_error = None
        self.workspace.create()
        self.woken.clear()
        registry = Registry(private_folder(self.workspace.path / "sockets"))
        try:
            server = self._open_server(self.workspace)
            self._deployer.start(server, registry)
        except BaseException:
            self.models.undeploy(deadline=0, unload=False)
            self.models.close(deadline=0)
            registry.close()
            raise
        self.server = server
        self.registry = registry
        atexit.register(self._stop_all)

    def _supervise(self, server: LocalServer | RemoteServer) -> None:
        """Restarts the server each time that it exits unexpectedly."""
        while server.wait_for_end():
            with self.lock:
                if self.server is not server or server.state.has_failed:
                    return
                if server.state is not ServerState.RESTARTING:
                    continue  # `connect` was faster
                try:
                    if not self._recover(server):
                        return
                except (PyTritonRuntimeError, PyTritonInvalidOperationError) as error:
                    self.woken.set()
                    log_safely(LOGGER, logging.ERROR, "%s", error)
                    return

    def _recover(self, server: LocalServer | RemoteServer) -> bool:
        """Restarts a server that exited unexpectedly, with all models; called with the lock held.

        Returns:
            Whether it is ready; False if it is being stopped.
        """
        registry = self.registry
        assert registry is not None
        return server.restart(lambda: self._deployer.deploy_again(server, registry))

    def _on_unrecoverable(self, error: PyTritonUnrecoverableError) -> None:
        LOGGER.error("An inference callable raised PyTritonUnrecoverableError; the server is shut down: %s", error)
        self._unrecoverable = error
        # Not in this thread, which is the worker's: `stop` waits for the worker.
        threading.Thread(target=self._stop_all, name="pytriton-stop", daemon=True).start()

    def _on_hang(self, model: str, hangs: bool) -> None:
        server = self.server
        if server is not None:
            server.set_hanging(model, hangs)

    def _on_failing(self, model: str, fails: bool) -> None:
        server = self.server
        if server is not None:
            server.set_failing(model, fails)
