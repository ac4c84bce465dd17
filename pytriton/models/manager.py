"""The manager of bound models: binds, deploys, undeploys and closes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
)
from pytriton.models.deployment import Deployment
from pytriton.models.draining import wait_until_quiet, wait_until_served
from pytriton.models.model import BoundModel
from pytriton.models.store import StoreError
from pytriton.models.table import ModelTable
from pytriton.server.control import ALL_MODELS

FEW_MODELS = 16
"""Up to this number, models are loaded and unloaded one by one.

For each model that is loaded or unloaded, Triton copies its records of all models. So if there are more, they are
loaded when the server starts, and unloaded when it stops, by one request for all of them.
"""


class ModelManager:
    """Holds the bound models, and deploys them to the server if there is one."""

    def __init__(self) -> None:
        self._models = ModelTable()
        self._deferred: dict[tuple[str, int], BoundModel] = {}  # bound models that are not loaded yet
        self._retired: list[BoundModel] = []  # replaced models, which may still be serving requests
        self._deployment: Deployment | None = None
        self._opening: Sequence[BoundModel] = ()  # models whose callables are being created
        self._is_stopping = False
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[BoundModel]:
        """Iterates over the bound models, in the order in which they were bound."""
        return iter(self._models)

    def __len__(self) -> int:
        """Returns the number of bound models; each version counts."""
        return len(self._models)

    def names(self) -> list[str]:
        """Returns the names of the bound models, in the order in which they were bound."""
        return self._models.names()

    @property
    def deferred(self) -> int:
        """Number of models that are not on the server yet."""
        return len(self._deferred)

    def add(self, model: BoundModel, *, defer: bool = False) -> None:
        """Adds a model, replacing one with the same name and version, and deploys it if there is a server.

        Args:
            model: The model.
            defer: Leave a new model to the next `deploy` or `load_deferred`.

        Raises:
            PyTritonModelConfigError: Another version of the model has other inputs, outputs or settings.
            PyTritonInvalidOperationError: The server refuses the model, or a process cannot create its callable.
            PyTritonRuntimeError: The model's files cannot be written.
        """
        with self._lock:
            key = model.key
            for other in self._models.versions(model.spec.name):
                if other.spec.version != model.spec.version:
                    _check_same(other, model)
            deployment = self._deployment  # a signal handler may stop the server meanwhile
            if deployment is None:
                self._models.put(model)
            elif key in self._deferred or (defer and not self._models.versions(model.spec.name)):
                self._models.put(model)
                self._deferred[key] = model
            else:
                self._add_deployed(model, deployment)

    def _add_deployed(self, model: BoundModel, deployment: Deployment) -> None:
        """Adds a model and deploys it; if that fails, the bound models stay as they are."""
        try:
            self._open([model], deployment)
        except BaseException:  # an interrupt as well
            deployment.discard(model)
            raise
        replaced = self._models.get(model.key)
        self._models.put(model)
        try:
            deployment.load(self._models.versions(model.spec.name))
        except (PyTritonInvalidOperationError, StoreError):
            self._models.pop(model.key)
            deployment.discard(model)
            if replaced is not None:
                self._models.put(replaced)
                with contextlib.suppress(PyTritonInvalidOperationError, StoreError):
                    deployment.load(self._models.versions(model.spec.name))
            raise
        if replaced is not None:
            self._retire([replaced], deployment)

    def remove(self, name: str, version: int | None = None) -> list[BoundModel]:
        """Removes a model, and unloads it from the server if there is one; requests in flight continue.

        Args:
            name: The model's name.
            version: Its version; None is every version.

        Returns:
            The models that were removed, for `wait_until_served`.

        Raises:
            PyTritonBadParameterError: No such model is bound.
            PyTritonInvalidOperationError: The server cannot unload it, or cannot load its other versions again.
        """
        with self._lock:
            keys = [model.key for model in self._models.versions(name) if version in (None, model.spec.version)]
            if not keys:
                raise self._not_bound(name, version)
            removed = [self._models.pop(key) for key in keys]
            deployment = self._deployment
            deferred = [self._deferred.pop(key, None) for key in keys]
            if deployment is None or all(deferred):
                return removed
            try:
                if self._models.versions(name):
                    deployment.load(self._models.versions(name))
                else:
                    deployment.remove(name)
            finally:
                self._retire(removed, deployment)
            return removed

    def _retire(self, models: Sequence[BoundModel], deployment: Deployment) -> None:
        """Retires models, and keeps those that may still be serving requests until `close`."""
        for model in models:
            model.retire(deployment.registry)
        self._retired = [each for each in (*self._retired, *models) if each.connections]

    def _not_bound(self, name: str, version: int | None) -> PyTritonBadParameterError:
        wanted = f"model {name!r}" if version is None else f"version {version} of model {name!r}"
        bound = ", ".join(f"{model.spec.name!r} (version {model.spec.version})" for model in self._models)
        return PyTritonBadParameterError(f"There is no {wanted} to unbind; the bound models are {bound or 'none'}.")

    @property
    def is_deployed(self) -> bool:
        """Whether the models are deployed to a server."""
        return self._deployment is not None

    def deploy(self, deployment: Deployment) -> None:
        """Deploys all models to a server, and from now on each added one."""
        with self._lock:
            self._deployment = deployment
            self._deferred = {}
            self._deploy(list(self), deployment)

    def load_deferred(self) -> None:
        """Loads the models that `add` has deferred, one by one; raises as `deploy` does."""
        with self._lock:
            deferred, self._deferred = list(self._deferred.values()), {}
            if self._deployment is not None:
                self._deploy(deferred, self._deployment)

    def load_missing(self) -> None:
        """Loads the models that the server should have loaded when it started, but has not.

        Raises:
            PyTritonInvalidOperationError: The server refuses one.
        """
        with self._lock:
            deployment = self._deployment
            if deployment is None:
                return
            states = deployment.control.states() or {}
            missing = [model.spec.name for model in self if states.get(model.key) != "READY"]
            for name in dict.fromkeys(missing):
                deployment.load(self._models.versions(name))

    def set_stopping(self, is_stopping: bool) -> None:
        """Has `deploy`, `add` and `load_deferred` of another thread fail rather than wait for callables of processes.

        Args:
            is_stopping: True before the models are undeployed for good, False once no other thread deploys any.
        """
        self._is_stopping = is_stopping
        if is_stopping:
            for model in self._opening:
                model.stop()

    def _open(self, models: Sequence[BoundModel], deployment: Deployment) -> None:
        deployment.open(models)
        self._opening = models
        try:
            if not self._is_stopping:
                deployment.register(models)
        except PyTritonInvalidOperationError:
            if not self._is_stopping:
                raise
        finally:
            self._opening = ()
        if self._is_stopping:
            names = ", ".join(repr(model.spec.name) for model in models)
            raise PyTritonInvalidOperationError(f"The server is being stopped, before it has loaded {names}.")

    def _deploy(self, models: Sequence[BoundModel], deployment: Deployment) -> None:
        self._open(models, deployment)
        for name in dict.fromkeys(model.spec.name for model in models):
            deployment.load(self._models.versions(name))

    def undeploy(self, deadline: float, *, unload: bool) -> list[str]:
        """Unloads the models from the server; their callables stay open and can be deployed to another one.

        Args:
            deadline: The ``time.monotonic()`` until which requests may finish.
            unload: Whether the server is still there to unload them.

        Returns:
            The names of models that were still serving requests at the deadline.
        """
        with self._lock:
            deployment = self._deployment
            if deployment is None:
                return []
            self._deployment = None
            self._deferred = {}
            try:
                return self._unload(deployment, deadline) if unload else []
            finally:
                for model in self:
                    model.unregister(deployment.registry)

    def close(self, deadline: float) -> None:
        """Closes the callables of all models, which must have been undeployed.

        Args:
            deadline: The ``time.monotonic()`` until which running callables may finish.
        """
        with self._lock:
            for model in (*self, *self._retired):
                model.close(deadline)
            self._retired = []

    def _unload(self, deployment: Deployment, deadline: float) -> list[str]:
        try:
            if deployment.unloads_all and len(self._models) > FEW_MODELS:
                return self._unload_together(deployment, deadline)
            deployment.request_unload(self.names(), deadline)
        except (PyTritonRuntimeError, OSError):
            return []  # the server is stopping, or has exited
        return wait_until_served([*self, *self._retired], deadline)

    def _unload_together(self, deployment: Deployment, deadline: float) -> list[str]:
        # The server accepts no more requests, but keeps all models while any has some. Those that its batcher still
        # delays are served after the request to unload.
        lost = wait_until_quiet(list(self), deadline)
        if lost:
            return lost
        deployment.request_unload([ALL_MODELS], deadline)
        return wait_until_served([*self, *self._retired], deadline)


def _check_same(one: BoundModel, other: BoundModel) -> None:
    """Checks that two versions of a model have the same configuration."""
    for field in ("inputs", "outputs", "config"):
        if getattr(one.spec, field) != getattr(other.spec, field):
            raise PyTritonModelConfigError(
                f"Versions {one.spec.version} and {other.spec.version} of model {one.spec.name!r} have different "
                f"{field}; Triton keeps one configuration for all versions: make them equal, or use another model name."
            )
