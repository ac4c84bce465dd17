"""Deploys the bound models to a server: at its start, or once it is ready, and again after it has exited."""

from __future__ import annotations

from pytriton.models.deployment import Deployment
from pytriton.models.events import ModelEvents
from pytriton.models.manager import FEW_MODELS, ModelManager
from pytriton.models.store import FolderStore, UploadStore
from pytriton.proxy.registry import Registry
from pytriton.server.lifecycle import TritonLifecyclePolicy
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer
from pytriton.server.state import ServerState

_DOWN = (ServerState.STOPPED, ServerState.RESTARTING)  # the server loads its models when it starts


class ModelDeployer:
    """Decides how a server gets the bound models: whether it loads them at its start, or on a command for each.

    Args:
        models: The bound models.
        policy: How a local server gets its models.
        events: What to call while the models are served.
    """

    def __init__(self, models: ModelManager, policy: TritonLifecyclePolicy, events: ModelEvents) -> None:
        self._models = models
        self._policy = policy
        self._events = events

    def start(self, server: LocalServer | RemoteServer, registry: Registry) -> None:
        """Starts a server, with the models that it loads itself before it is ready.

        Raises:
            PyTritonRuntimeError: It cannot be started.
            PyTritonInvalidOperationError: The callable of a model cannot be created.
        """
        if self._policy.local_model_store:
            self._deploy(server, registry)
            server.start([*self._models.names(), *server.repository_models()])
        elif isinstance(server, LocalServer) and len(self._models) > FEW_MODELS:
            self._deploy(server, registry)
            server.start(self._models.names(), tolerant=True)
        else:
            server.start()

    def complete(self, server: LocalServer | RemoteServer, registry: Registry) -> None:
        """Loads the models that a ready server has not loaded at its start.

        Raises:
            PyTritonInvalidOperationError: The server refuses a model, or the callable of one cannot be created.
        """
        if not self._models.is_deployed:
            self._deploy(server, registry)
        elif not self._policy.local_model_store:
            self._models.load_missing()

    def deploy_again(self, server: LocalServer | RemoteServer, registry: Registry) -> list[str]:
        """Deploys all models to a server that has exited and is being restarted; returns their names.

        Raises:
            PyTritonInvalidOperationError: The server refuses a model.
        """
        self._models.undeploy(deadline=0, unload=False)
        self._deploy(server, registry)
        return self._models.names()

    def defers(self, server: LocalServer | RemoteServer | None) -> bool:
        """Returns whether a new model is loaded later, with others, by `load_deferred`, since there are many."""
        return isinstance(server, LocalServer) and len(self._models) >= FEW_MODELS

    def load_deferred(self, server: LocalServer | RemoteServer, registry: Registry) -> None:
        """Loads the deferred models; if there are many, the server is restarted, and loads them all at its start.

        Raises:
            PyTritonRuntimeError: The server cannot be restarted.
            PyTritonInvalidOperationError: The server refuses a model, or the callable of one cannot be created.
        """
        if self._models.deferred <= FEW_MODELS or not isinstance(server, LocalServer) or self._is_shared(server):
            self._models.load_deferred()
            return
        server.start_anew(lambda: self.deploy_again(server, registry))
        self._models.load_missing()

    def _is_shared(self, server: LocalServer) -> bool:
        """Returns whether the server has models besides the bound ones, such as those of the user's repository."""
        states = server.control.states()
        return states is None or not {name for name, _ in states} <= set(self._models.names())

    def _deploy(self, server: LocalServer | RemoteServer, registry: Registry) -> None:
        store = (
            FolderStore(
                server.repository,
                server.control,
                lambda: server.state not in _DOWN,
                builds_batches=server.builds_batches,
            )
            if isinstance(server, LocalServer)
            else UploadStore(server.control)
        )
        unloads_all = isinstance(server, LocalServer) and server.is_guarded
        self._models.deploy(Deployment(store, registry, server.control, unloads_all, self._events))
