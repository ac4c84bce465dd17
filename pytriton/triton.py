"""The Triton Inference Server, and the models bound to it."""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref

from pytriton.constants import (
    DEFAULT_HTTP_PORT,
    DEFAULT_TRITON_STARTUP_TIMEOUT_S,
    MODEL_CONFIG_URL,
    MODEL_INFER_URL,
    MODEL_READY_URL,
    MODEL_URL,
    TRITON_ACCESS_HEADER,
    TRITON_LOCAL_IP,
)
from pytriton.exceptions import PyTritonValidationError as PyTritonValidationError
from pytriton.model_config.arguments import check_instance, check_path
from pytriton.model_config.model_config import ModelConfig as ModelConfig
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor as Tensor
from pytriton.notebook import model_rows, triton_html
from pytriton.proxy.context import TritonContext as TritonContext
from pytriton.run_options import run_options
from pytriton.server.config import TritonConfig, overlaid
from pytriton.server.control import check_url
from pytriton.server.lifecycle import DEFAULT_POLICY, VERTEX_AI_POLICY, TritonLifecyclePolicy, policy_for
from pytriton.server.local import LocalServer
from pytriton.server.ports import ports_of
from pytriton.server.security import (
    DEFAULT_PROTECTED_ENDPOINTS,
    VALID_TRITON_ENDPOINTS,
    AccessControl,
    TritonSecurityConfig,
)
from pytriton.server.settings_check import check_model
from pytriton.triton_base import MONITORING_PERIOD_S, TritonBase
from pytriton.utils.console import is_interactive
from pytriton.utils.distribution import get_root_module_path
from pytriton.utils.workspace import Workspace

__all__ = [
    "DEFAULT_PROTECTED_ENDPOINTS",
    "DEFAULT_TRITON_STARTUP_TIMEOUT_S",
    "MODEL_CONFIG_URL",
    "MODEL_INFER_URL",
    "MODEL_READY_URL",
    "MODEL_URL",
    "MONITORING_PERIOD_S",
    "TRITONSERVER_DIST_DIR",
    "TRITON_ACCESS_HEADER",
    "VALID_TRITON_ENDPOINTS",
    "DefaultTritonLifecyclePolicy",
    "RemoteTriton",
    "Triton",
    "TritonBase",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "VertextAILifecyclePolicy",
]

LOGGER = logging.getLogger(__name__)

TRITONSERVER_DIST_DIR = get_root_module_path() / "tritonserver"
"""The folder of the bundled server."""

DefaultTritonLifecyclePolicy = DEFAULT_POLICY
"""The policy of most servers."""

VertextAILifecyclePolicy = VERTEX_AI_POLICY
"""The policy for Vertex AI, spelled as in nvidia-pytriton."""


_opened: weakref.WeakSet[Triton] = weakref.WeakSet()  # each has had a server


class Triton(TritonBase):
    """Serves Python functions on the Triton Inference Server.

    The server is a subprocess; the functions run in this process. Nothing is started and no port is taken before
    ``with``, `connect`, `run` or `serve`. Use it as a context manager, or call `stop` at the end.

    Args:
        config: The server's settings. Fields that are None are taken from environment variables
            ``PYTRITON_TRITON_CONFIG_<FIELD>``, then from the server's defaults. Port 0 is any free port.
        workspace: The folder for the model repository and sockets; a temporary one by default.
        triton_lifecycle_policy: When the server starts, and how it gets its models. With Vertex AI, it starts by
            default in `run` and `serve` with the models that are bound by then.
        security_config: Which endpoints of the server require a token; by default those that change the server or
            reveal data of other clients: shared memory, model repository, statistics, trace and logging.
        server_path: The folder of a server of your own, such as ``/opt/tritonserver``, in place of the bundled one. The
            environment variable ``PYTRITON_SERVER_PATH`` sets it, too.

    Raises:
        PyTritonBadParameterError: A setting of the access control has an invalid value. Other settings, and the
            ports, are checked when the server starts.

    Examples:
        >>> @batch
        ... def double(x):
        ...     return {"y": x * 2}
        >>> with Triton() as triton:  # doctest: +SKIP
        ...     triton.bind(
        ...         model_name="Double",
        ...         infer_func=double,
        ...         inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        ...         outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
        ...         config=ModelConfig(max_batch_size=128),
        ...     )
        ...     triton.serve()
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: Workspace | str | os.PathLike[str] | None = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
        server_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Checks the types of the arguments, and the settings of the access control; starts nothing."""
        check_instance("Triton: config", config, TritonConfig)
        check_instance("Triton: security_config", security_config, TritonSecurityConfig)
        check_instance("Triton: triton_lifecycle_policy", triton_lifecycle_policy, TritonLifecyclePolicy)
        check_path("Triton: server_path", server_path or None)
        config = overlaid(config or TritonConfig(), run_options().config)
        self._config = overlaid(TritonConfig.from_env(), config)
        self._access = AccessControl(security_config or TritonSecurityConfig(), self._config)
        policy = triton_lifecycle_policy or policy_for(self._config)
        url = f"http://{TRITON_LOCAL_IP}:{self._config.http_port or DEFAULT_HTTP_PORT}"
        super().__init__(url, workspace, policy, self._access.token)
        if self._config.exit_timeout_secs is not None:
            self._session.exit_timeout_s = self._config.exit_timeout_secs
        self._server_path = server_path

    def __enter__(self) -> Triton:
        """Starts the server, unless the lifecycle policy defers that to `run`, and waits until it is ready."""
        if self._session.policy.launch_triton_on_startup:
            try:
                with self._session.lock:
                    self._session.connect()
            except BaseException:  # an interrupt as well: there will be no __exit__
                self.stop()
                raise
        return self

    @property
    def config(self) -> TritonConfig:
        """The server's settings; while it runs, with the numbers of the ports that it listens on."""
        server = self._session.server
        return dataclasses.replace(server.config if isinstance(server, LocalServer) else self._config)

    def get_access_token(self) -> str:
        """Returns the token that restricted endpoints require in the header ``triton-access-token``.

        Over gRPC, the header is ``triton-grpc-protocol-triton-access-token``.

        Examples:
            >>> with Triton() as triton:  # doctest: +SKIP
            ...     remote = RemoteTriton(url="localhost", access_token=triton.get_access_token())
        """
        return self._access.token

    def _repr_html_(self) -> str:
        """Returns a table of the models and their URLs, for notebooks."""
        server = self._session.server
        alive = isinstance(server, LocalServer) and server.is_alive()
        urls = server.urls() if isinstance(server, LocalServer) and alive else []
        states = server.control.states() if server is not None and alive else None
        ended = server.how_it_ended() if isinstance(server, LocalServer) and server.state.has_failed else ""
        rows = model_rows((model.spec for model in self._session.models), states or {}, urls)
        return triton_html(rows, urls, alive, ended)

    def _listen_on_loopback(self) -> None:
        config = dataclasses.replace(
            self._config,
            http_address=self._config.http_address or TRITON_LOCAL_IP,
            grpc_address=self._config.grpc_address or TRITON_LOCAL_IP,
            metrics_address=self._config.metrics_address or self._config.http_address or TRITON_LOCAL_IP,
        )
        if config != self._config:
            self.stop()  # a `with` block has started it at the default addresses
            self._config = config

    def _check(self, spec: ModelSpec) -> None:
        check_model(spec, self._config)

    def _open(self, workspace: Workspace) -> LocalServer:
        run_options().check_start()
        if is_interactive():
            self._stop_predecessor()
        _opened.add(self)
        return LocalServer(self._config, self._access, workspace, self._server_path, self._session.on_exit)

    def _stop_predecessor(self) -> None:
        """Stops what serves on the same ports: a cell that runs again has lost the object that it made before."""
        wanted = ports_of(self._config)
        for other in list(_opened):
            if other is not self and other.is_alive() and (shared := wanted & ports_of(other.config)):
                LOGGER.warning(
                    "The Triton that served on %s is stopped, because this one takes its place. To run both, choose "
                    "other ports with TritonConfig(http_port=..., grpc_port=..., metrics_port=...).",
                    " and ".join(f"port {port}" for port in sorted(shared)),
                )
                other.stop()


class RemoteTriton(TritonBase):
    """Serves Python functions on a server that another process of this host has started with `Triton`.

    The functions run in this process. When it stops, its models are unloaded. When it is killed, requests in flight
    fail, and the server unloads the models within seconds. Containers must share the workspace folder: the server
    reaches this process through a socket in it.

    Args:
        url: The server's URL: ``host``, ``host:port``, ``http://...`` or ``grpc://...``.
        workspace: The folder for sockets; a temporary one by default.
        access_token: The server's token, which its repository API requires by default: `Triton.get_access_token`.

    Raises:
        PyTritonBadParameterError: The URL is invalid.

    Examples:
        >>> with RemoteTriton(url="localhost", access_token=token) as triton:  # doctest: +SKIP
        ...     triton.bind("Double", double, inputs=[...], outputs=[...])
        ...     triton.serve()
    """

    def __init__(
        self,
        url: str,
        workspace: Workspace | str | os.PathLike[str] | None = None,
        access_token: str | None = None,
    ) -> None:
        """Checks the URL; `bind`, `connect` and `serve` connect to the server."""
        check_url(url)
        super().__init__(url, workspace, access_token=access_token)

    def __enter__(self) -> RemoteTriton:
        self.connect()
        return self
