"""A local server: started, watched and stopped by this process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import PyTritonBindError, PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.model_config.model_spec import check_model_name
from pytriton.proxy.telemetry.tracer import use_trace_config
from pytriton.proxy.transport.arena import default_capacity
from pytriton.server.config import TritonConfig, with_absolute_paths
from pytriton.server.control import control_of
from pytriton.server.files import find_server
from pytriton.server.gate import Gate, GateState
from pytriton.server.launch import command_line, environment_variables, without_secrets
from pytriton.server.ports import exposed, give_back, reachable, take, unreachable, with_ports
from pytriton.server.process import ServerProcess
from pytriton.server.restart import DEFAULT_LIMIT, RestartPolicy
from pytriton.server.running_servers import RunningServer, publish
from pytriton.server.security import AccessControl
from pytriton.server.settings_check import check_settings
from pytriton.server.state import ServerState
from pytriton.server.version import ServerVersion, version_of
from pytriton.server.vertex_ai import with_vertex_ai
from pytriton.server.vulnerabilities import summary
from pytriton.utils.console import log_safely
from pytriton.utils.exit_status import describe_exit
from pytriton.utils.limits import check_limits, limits_hint
from pytriton.utils.working_folder import working_folder
from pytriton.utils.workspace import Workspace, private_folder

LOGGER = logging.getLogger(__name__)

_GUARD = "libpytriton_guard.so"  # beside the launcher
_POLL_S = 0.01
_LOAD_TIMEOUT_S = 10.0  # extra startup time for each model that it loads
_LOADING_THREADS = 4  # the server's own default for loading models
_EXIT_GRACE_S = 1.2
_POLL_FAILED = "failed to poll"  # in an error, which does not say why
_NOTICED_S = 0.5  # from the end of its connections to the exit of the process


class LocalServer:
    """A tritonserver subprocess, with the model repository that it loads from.

    Args:
        config: Its settings.
        access: The access control of its endpoints.
        workspace: Where the model repository goes.
        path: The folder of a server that replaces the bundled one.
        on_exit: Called when the process has exited.

    Raises:
        PyTritonRuntimeError: A port is in use, or the server cannot be started.
        PyTritonBadParameterError: A setting has an invalid value.
    """

    def __init__(
        self,
        config: TritonConfig,
        access: AccessControl,
        workspace: Workspace,
        path: str | os.PathLike[str] | None,
        on_exit: Callable[[], None],
    ) -> None:
        """Checks the settings; `start` starts the process."""
        check_limits(default_capacity())
        self._files = find_server(path)
        self.config = with_ports(with_vertex_ai(with_absolute_paths(config)))
        check_settings(self.config)
        self.control = control_of(self.config, access)
        self.repository = private_folder(workspace.path / "models")
        self._access = access
        self._workspace = workspace.path
        self._folder = working_folder()  # of restarts, too: models may import modules from there
        self._on_exit = on_exit
        self._process: ServerProcess | None = None
        self._gate = Gate()
        self._drain_lock = threading.Lock()
        self._drained_at: float | None = None  # time.monotonic()
        self._restarts = config.restart is not False
        self._has_logged = False
        self._policy = RestartPolicy(DEFAULT_LIMIT if config.restart_limit is None else config.restart_limit)
        self._start_error: Exception | None = None  # of the last restart
        self._stopping = threading.Event()
        self._state = ServerState.STOPPED
        self._own_models: list[str] | None = None  # None until they are loaded
        self._timeout_s: float = DEFAULT_TRITON_STARTUP_TIMEOUT_S
        self._version = version_of(self._files.root)
        self._end_tracing = _trace(self.config.trace_config)

    def start(self, bound: Sequence[str] | None = None, *, tolerant: bool = False) -> None:
        """Starts the process, which becomes ready in the background.

        Args:
            bound: Models that the server loads before it is ready.
            tolerant: Start even if one of them cannot be loaded.

        Raises:
            PyTritonRuntimeError: It cannot be started.
        """
        command = self.command(bound or (), tolerant=tolerant)
        shown, secrets = without_secrets(command) if self.is_guarded else (command, {})
        self._timeout_s = DEFAULT_TRITON_STARTUP_TIMEOUT_S + _LOAD_TIMEOUT_S * len(bound or ())
        take(self.config)
        try:
            variables = environment_variables(self._files, self.config, self._workspace, self._version)
            variables |= {"PYTRITON_GATE": str(self._gate.fd), "PYTRITON_SERVER_RESTARTS": str(self._policy.restarts)}
            self._process = ServerProcess(
                str(self._files.launcher), shown, variables | secrets, self._note_exit, [self._gate.fd], self._folder
            )
        except BaseException:
            give_back(self.config)
            raise
        self._state = ServerState.STARTING

    def start_anew(self, deploy: Callable[[], Sequence[str]]) -> None:
        """Replaces the process with a new one, which loads the bound models as it starts; waits until it is ready.

        Must be called while the server has no requests.

        Args:
            deploy: Writes the bound models to the repository, and returns their names.

        Raises:
            PyTritonRuntimeError: It cannot be started, or exits.
            PyTritonInvalidOperationError: The callable of a model cannot be created.
        """
        self._state = ServerState.RESTARTING
        self.process.stop(0)
        self.start(deploy(), tolerant=True)
        self.wait_until_ready()

    def command(self, bound: Sequence[str] = (), *, tolerant: bool = False) -> list[str]:
        """Returns the command line: the server's program, and its flags.

        Args:
            bound: Models that the server loads before it is ready.
            tolerant: Start even if one of them cannot be loaded.

        Raises:
            PyTritonBadParameterError: The server lacks the flag of a setting.
            PyTritonRuntimeError: It lacks a flag that restricts its endpoints.
        """
        return command_line(self._files, self.config, self._access, self._workspace, bound, tolerant=tolerant)

    @property
    def is_guarded(self) -> bool:
        """Whether the guard is loaded into the process."""
        return os.environ.get("PYTRITON_GUARD") != "0" and (self._files.launcher.parent / _GUARD).exists()

    @property
    def builds_batches(self) -> bool:
        """Whether the backend can build batches: the guard calls it when Triton has no more requests for one."""
        return self.is_guarded and os.environ.get("PYTRITON_BATCHING") != "0"

    @property
    def process(self) -> ServerProcess:
        """The subprocess, after it was started."""
        assert self._process is not None
        return self._process

    @property
    def state(self) -> ServerState:
        """The server's state."""
        if self._state is ServerState.STARTING and not self.is_alive():
            return ServerState.START_FAILED
        if self._state is ServerState.READY and not self.is_alive():
            return ServerState.RESTARTING if self._restarts else ServerState.FAILED
        return self._state

    def _note_exit(self) -> None:
        if self._state is not ServerState.RESTARTING:  # `start_anew` and `restart` check the exit themselves
            self._on_exit()

    def is_alive(self) -> bool:
        """Returns whether the process is running."""
        return self._process is not None and self._process.is_alive()

    @property
    def version(self) -> ServerVersion | None:
        """The server's version; None if its folder does not record it and the server has not been ready yet."""
        return self._version

    @property
    def restarts(self) -> int:
        """Number of restarts of the server."""
        return self._policy.restarts

    @property
    def is_restarted(self) -> bool:
        """Whether the server is restarted when it exits unexpectedly."""
        return self._restarts

    def wait_for_end(self) -> bool:
        """Waits until the server exits.

        Returns:
            Whether it exited unexpectedly.
        """
        self.process.wait()
        return self._state not in (ServerState.STOPPING, ServerState.STOPPED)

    def notice_end(self) -> bool:
        """Checks, after a request to the server failed, whether it has exited."""
        return not self.control.is_live() and self.process.wait(_NOTICED_S)

    def restart(self, deploy: Callable[[], Sequence[str]]) -> bool:
        """Restarts the server after it exited unexpectedly.

        Args:
            deploy: Writes the bound models to the repository, and returns their names.

        Returns:
            Whether it is ready; False if `abandon` was called.

        Raises:
            PyTritonRuntimeError: The server stays down.
        """
        began = time.monotonic()
        with self._gate.held():
            if not self._start_again(deploy):
                return False
        took_s = time.monotonic() - began
        log_safely(LOGGER, logging.WARNING, "The server was restarted, and is ready again after %.1f s.", took_s)
        return True

    def _start_again(self, deploy: Callable[[], Sequence[str]]) -> bool:
        while True:
            self._state = ServerState.RESTARTING
            if self._stopping.is_set():
                return False
            pause_s = self._policy.next_pause_s()
            if pause_s is None:
                self._state, self._restarts = ServerState.FAILED, False
                raise PyTritonRuntimeError(f"It stays down, because it ended too often. {self.exit_report()}")
            log_safely(
                LOGGER,
                logging.ERROR,
                '%s\nIt is started again%s. "Troubleshooting" in the documentation lists causes.',
                self.exit_report(),
                f" in {pause_s:g} s" if pause_s else "",
            )
            if self._stopping.wait(pause_s):
                return False
            self._start_error = None
            try:
                self.start([*deploy(), *(self._own_models or [])])
                self.wait_until_ready()
                self._policy.note_ready()
                return True
            except Exception as error:  # of any kind: nothing else would retry
                self._start_error = error
                self.process.stop(0)

    def abandon(self) -> None:
        """Ends `restart` early; the server is to be stopped."""
        self._stopping.set()

    def open_gate(self) -> None:
        """Lets the server report that it is ready, unless the user's own models are not loaded yet."""
        if self._own_models is None and self.config.model_repository is not None:
            return
        self._gate.open()
        if not self._has_logged:
            self._has_logged = True
            self._log_urls()

    def wait_until_ready(self) -> None:
        """Waits until the server accepts requests.

        Raises:
            PyTritonRuntimeError: It exited, or took too long.
        """
        deadline = time.monotonic() + self._timeout_s
        # It opens its ports one after another.
        while not (self.control.is_live() and unreachable(self.config) is None):
            if self.process.wait(_POLL_S):
                raise PyTritonRuntimeError(self.exit_report())
            if self._stopping.is_set():
                raise PyTritonRuntimeError("The server was stopped while it started.")
            if time.monotonic() > deadline:
                late = f"The server is not ready after {self._timeout_s:g} s."
                report = " ".join(filter(None, [late, unreachable(self.config), "Its last lines:"]))
                raise PyTritonRuntimeError(f"{report}\n{self.process.log.tail()}")
        self._version = self.control.version() or self._version
        self._state = ServerState.READY
        publish(RunningServer(os.getpid(), self.urls(), self._access.token), self._workspace)

    def load_repository(self) -> None:
        """Loads the models of ``TritonConfig.model_repository``: the user's own, if any.

        With ``TritonConfig(exit_on_error=False)``, those that the server cannot load are logged, and left out.

        Raises:
            PyTritonInvalidOperationError: The server cannot load one.
        """
        if self._own_models is not None or self.config.model_repository is None:
            return
        self._own_models = []
        failures = []
        with concurrent.futures.ThreadPoolExecutor(_LOADING_THREADS) as pool:
            loads = {name: pool.submit(self._load_own, name) for name in self.repository_models()}
        for name, load in loads.items():
            try:
                load.result()
                self._own_models.append(name)
            except (PyTritonBindError, PyTritonRuntimeError) as error:
                failure = PyTritonInvalidOperationError(
                    f"The server cannot load model {name!r} from {self.config.model_repository}: {error}"
                )
                failure.__cause__ = error
                failures.append(failure)
        if failures:
            self._report(failures)

    def _load_own(self, name: str) -> None:
        check_model_name(name)
        try:
            self.control.load(name)
        except PyTritonRuntimeError as error:
            reason = self.process.log.poll_failure(name, _NOTICED_S) if _POLL_FAILED in str(error) else ""
            if not reason:
                raise
            raise PyTritonRuntimeError(f"{reason}.") from None

    def _report(self, failures: Sequence[PyTritonInvalidOperationError]) -> None:
        """Logs which models cannot be loaded; raises the first failure instead if `exit_on_error` is set."""
        goes_on = self.config.exit_on_error is False and not self.notice_end()
        for failure in failures if goes_on else failures[1:]:
            LOGGER.error("%s", failure)
        if not goes_on:
            raise failures[0]

    def _log_urls(self) -> None:
        LOGGER.info("Serving on %s with Triton %s.", ", ".join(self.urls()), self._version or "of an unknown version")
        holes = None if self._version is None else summary(self._version)
        if holes is None:
            return
        settings = exposed(self.config)
        if not settings:
            LOGGER.info("%s", holes)
            return
        LOGGER.warning(
            "Other machines reach the server (%s), and %s Set TritonConfig(http_address='127.0.0.1', "
            "grpc_address='127.0.0.1'), or use a newer server.",
            ", ".join(settings),
            holes,
        )

    def repository_models(self) -> list[str]:
        """Returns the names of the user's own models."""
        repository = self.config.model_repository
        if repository is None:
            return []
        folders = sorted(pathlib.Path(repository).iterdir())
        return [folder.name for folder in folders if folder.is_dir() and not folder.name.startswith(".")]

    def set_hanging(self, model: str, hangs: bool) -> None:
        """Marks a model as not ready because a call of its callable hangs, or as ready again."""
        self._gate.set_hanging(model, hangs)

    def set_failing(self, model: str, fails: bool) -> None:
        """Marks a model as not ready because none of its instances can be restarted, or as ready again."""
        self._gate.set_failing(model, fails)

    def drain(self) -> None:
        """Makes the server report that it is not ready, and waits for load balancers to notice; it still serves."""
        with self._drain_lock:
            if self._drained_at is None:
                was_ready = self._gate.state is GateState.SERVING and self.is_alive()
                self._drained_at = time.monotonic() + (self.config.drain_secs or 0) * was_ready
            self._gate.drain()
        self._stopping.wait(max(0.0, self._drained_at - time.monotonic()))

    def refuse(self) -> None:
        """Makes the server refuse new requests."""
        self._gate.close()

    def prepare_to_stop(self, timeout_s: float) -> None:
        """Unloads the user's own models, before the bound ones that they may call.

        Args:
            timeout_s: How long they may take to finish their requests.
        """
        self._state = ServerState.STOPPING
        deadline = time.monotonic() + timeout_s
        for name in reversed(self._own_models or []):
            with contextlib.suppress(PyTritonRuntimeError):  # the server may be gone, or busy reloading it
                self.control.unload(name, max(_POLL_S, deadline - time.monotonic()))
        with self._repository_there():
            while (left := self._unfinished()) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if left:
            names = ", ".join(map(repr, left))
            LOGGER.error("Models %s have not finished after %g s, and are killed with the server.", names, timeout_s)

    @contextlib.contextmanager
    def _repository_there(self) -> Iterator[None]:
        """Makes the folder of the bound models again if it was deleted: the server could not list any model."""
        made = []
        for folder in (self._workspace, self.repository):
            with contextlib.suppress(OSError):  # usually, it is there
                folder.mkdir(mode=0o700)
                made.append(folder)
        try:
            yield
        finally:
            for folder in reversed(made):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _unfinished(self) -> list[str]:
        """Returns which of the user's own models serve requests, or run `finalize`; all if the server is busy."""
        own = self._own_models
        if not own:
            return []
        states = self.control.states()
        if states is None:
            return own if self.is_alive() else []
        there = {name for (name, _), state in states.items() if not state.startswith("UNAVAILABLE")}
        return [name for name in own if name in there]

    def stop(self) -> None:
        """Ends the process."""
        self._state = ServerState.STOPPING
        if self._process is not None:
            self._process.stop(_EXIT_GRACE_S)
            give_back(self.config)
        self._end_tracing()
        self._state = ServerState.STOPPED

    def urls(self) -> list[str]:
        """Returns the URLs at which the server is reached from this host."""
        urls = []
        if self.config.allow_http is not False:
            urls.append(f"http://{_host(self.config.http_address)}:{self.config.http_port}")
        if self.config.allow_grpc is not False:
            urls.append(f"grpc://{_host(self.config.grpc_address)}:{self.config.grpc_port}")
        return urls

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics; None if they are not served."""
        if self.config.allow_metrics is False:
            return None
        return f"http://{_host(self.config.metrics_address or self.config.http_address)}:{self.config.metrics_port}"

    def how_it_ended(self) -> str:
        """Describes how the process ended."""
        return describe_exit(self.process.returncode)

    def exit_report(self) -> str:
        """Describes how the server ended, with the last lines of its log, or why it could not be started again."""
        if self._start_error is not None:
            return str(self._start_error) or repr(self._start_error)
        lines = self.process.log.tail()
        ended = f"The server exited unexpectedly: it {self.how_it_ended()}"
        if self.config.log_file is None:
            return f"{ended}.{limits_hint(lines)} Its last lines:\n{lines}"
        # Its output goes there, except for errors in its command line.
        log_file = f"{str(self.config.log_file)!r} (TritonConfig.log_file)"
        return f"{ended}; see its log, {log_file}.\n{lines}".rstrip()


def _host(address: str | None) -> str:
    host = reachable(address)
    return f"[{host}]" if ":" in host else host


def _trace(trace_config: list[str] | None) -> Callable[[], None]:
    """Enables spans of inference callables if the server traces; returns a function that disables them."""
    try:
        return use_trace_config(trace_config)
    except ImportError as error:
        LOGGER.warning("The server traces requests, but inference callables have no spans. %s.", error)
        return lambda: None
