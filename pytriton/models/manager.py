"""The manager of bound models: binds, deploys, undeploys and closes them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
)
from pytriton.models.model import BoundModel
from pytriton.models.store import FolderStore, ModelStore, StoreError
from pytriton.models.table import ModelTable
from pytriton.proxy.registry import Registry
from pytriton.server.control import ALL_MODELS, ServerControl
from pytriton.utils.limits import allow_files, limits_hint

LOGGER = logging.getLogger(__name__)

FEW_MODELS = 16
"""So many models are loaded and unloaded one by one.

For each that is loaded or unloaded, Triton copies its records of all models. So more are loaded when the server starts,
and unloaded when it stops: either is one request for all of them.
"""

_FILES_PER_INSTANCE = 6  # sockets, shared memory and what hands them over

_POLL_S = 0.01
_QUIET_S = 0.3
_BUSY_S = 0.05  # since a model's last request, when the next one may be on its way
_FRESH_S = 0.25  # how old the state of a process may be
_LAST_CALL_S = 2.0  # for streams that are still running


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A server to which models are deployed.

    Attributes:
        store: Brings models to the server.
        registry: The registry in which instances look up their workers.
        control: Loads and unloads models.
        unloads_all: Whether the server stops when its models are undeployed, and knows `ALL_MODELS`.
        on_unrecoverable: Called with a PyTritonUnrecoverableError of an inference callable.
        on_hang: Called with a model's name and True for each call of its callable that takes too long, and with False
            at its end.
    """

    store: ModelStore
    registry: Registry
    control: ServerControl
    unloads_all: bool
    on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]
    on_hang: Callable[[str, bool], None]


class ModelManager:
    """Holds the bound models, and deploys them to the server if there is one."""

    def __init__(self) -> None:
        self._models = ModelTable()
        self._deferred: dict[tuple[str, int], BoundModel] = {}  # bound models that are not loaded yet
        self._retired: list[BoundModel] = []  # replaced models, which may still be serving requests
        self._deployment: Deployment | None = None
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
        """Number of models that a server does not have yet."""
        return len(self._deferred)

    def add(self, model: BoundModel, *, defer: bool = False) -> None:
        """Adds a model, in place of one with the same name and version, and deploys it if there is a server.

        Args:
            model: The model.
            defer: Leave a new one to the next `deploy` or `load_deferred`.

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
            replaced = self._models.get(key)
            deployment = self._deployment  # a signal's handler may stop the server meanwhile
            if deployment is None:
                self._models.put(model)
                return
            if key in self._deferred or (defer and not self._models.versions(model.spec.name)):
                self._models.put(model)
                self._deferred[key] = model
                return
            allow_files(_FILES_PER_INSTANCE * model.instances)
            try:
                _open(model, deployment, _served([model], deployment))
                _register(model, deployment)
            except BaseException:  # an interrupt as well: the bound models stay as they are
                _discard(model, deployment)
                raise
            self._models.put(model)
            try:
                self._load(model.spec.name, deployment)
            except (PyTritonInvalidOperationError, StoreError):
                self._models.pop(key)
                _discard(model, deployment)
                if replaced is not None:
                    self._models.put(replaced)
                    with contextlib.suppress(PyTritonInvalidOperationError, StoreError):
                        self._load(replaced.spec.name, deployment)
                raise
            if replaced is not None:
                replaced.retire(deployment.registry)
                self._retired = [each for each in (*self._retired, replaced) if each.connections]

    def remove(self, name: str, version: int | None = None) -> list[BoundModel]:
        """Removes a model, and unloads it from the server if there is one; requests in flight go on.

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
                    self._load(name, deployment)
                else:
                    _unload(name, deployment)
            finally:
                for model in removed:
                    model.retire(deployment.registry)
                self._retired = [each for each in (*self._retired, *removed) if each.connections]
            return removed

    def _not_bound(self, name: str, version: int | None) -> PyTritonBadParameterError:
        wanted = f"model {name!r}" if version is None else f"version {version} of model {name!r}"
        bound = ", ".join(f"{model.spec.name!r} (version {model.spec.version})" for model in self._models)
        return PyTritonBadParameterError(f"There is no {wanted} to unbind; bound are {bound or 'no models'}.")

    @property
    def is_deployed(self) -> bool:
        """Whether the models are deployed to a server."""
        return self._deployment is not None

    def deploy(self, deployment: Deployment) -> None:
        """Deploys all models to a server, and from now on each that is added."""
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
                self._load(name, deployment)

    def _deploy(self, models: Sequence[BoundModel], deployment: Deployment) -> None:
        allow_files(_FILES_PER_INSTANCE * sum(model.instances for model in models))
        served = _served(models, deployment)
        for model in models:
            _open(model, deployment, served)
        for model in models:
            _register(model, deployment)
        for name in dict.fromkeys(model.spec.name for model in models):
            self._load(name, deployment)

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
        """Closes the callables of all models, which have to be undeployed.

        Args:
            deadline: The ``time.monotonic()`` until which running callables may finish.
        """
        with self._lock:
            for model in (*self, *self._retired):
                model.close(deadline)
            self._retired = []

    def _load(self, name: str, deployment: Deployment) -> None:
        versions = self._models.versions(name)
        spec = versions[-1].spec
        files: dict[str, bytes] = {}
        try:
            config = dataclasses.replace(spec.config, response_cache=all(model.cached for model in versions))
            instances = max(model.spec.instances for model in versions)
            spec = dataclasses.replace(spec, config=config, instances=instances)
            for model in versions:
                files |= model.files(deployment.registry)
            deployment.store.put(spec, [model.spec.version for model in versions], files)
        except StoreError:
            raise
        except (PyTritonRuntimeError, PyTritonBadParameterError, OSError) as error:
            raise PyTritonInvalidOperationError(
                f"The server cannot load model {name!r}: {error}{limits_hint()}"
            ) from error

    def _unload(self, deployment: Deployment, deadline: float) -> list[str]:
        try:
            if deployment.unloads_all and len(self._models) > FEW_MODELS:
                return self._unload_together(deployment, deadline)
            _request_unload(self.names(), deployment, deadline)
        except (PyTritonRuntimeError, OSError):
            return []  # the server is going, or gone
        return wait_until_served([*self, *self._retired], deadline)

    def _unload_together(self, deployment: Deployment, deadline: float) -> list[str]:
        # The server, which accepts no more of them, keeps all models while any has requests. Those that its batcher
        # still holds back are served after it was told to unload.
        now = time.monotonic()
        lost = _wait_until_quiet([model for model in self if now - model.idle_since() < _BUSY_S], deadline, _QUIET_S)
        if lost:
            return lost
        _request_unload([ALL_MODELS], deployment, deadline)
        return wait_until_served([*self, *self._retired], deadline)


def wait_until_served(models: Sequence[BoundModel], deadline: float) -> list[str]:
    """Waits until models that are being unloaded have served their requests, and ends streams that take too long.

    Args:
        models: The models.
        deadline: The ``time.monotonic()`` until which requests may finish.

    Returns:
        The names of models that were still serving requests at the deadline.
    """
    # An instance disconnects once it has served its requests. But Triton keeps it while clients keep gRPC streams
    # open on which they have sent it requests, even if these have been served. It accepts no new ones, and passes
    # queued ones to idle callables.
    return _wait_until_quiet(models, deadline, _QUIET_S + max(map(_queue_delay_s, models), default=0))


def _wait_until_quiet(models: Sequence[BoundModel], deadline: float, quiet_s: float) -> list[str]:
    start = time.monotonic()
    last_call = deadline - min(_LAST_CALL_S, (deadline - start) / 2)
    while any(model.connections for model in models):
        now = time.monotonic()
        if now > deadline:
            return [model.spec.name for model in models if model.connections and now - model.idle_since() < _FRESH_S]
        if now - max([start, *(model.idle_since() for model in models)]) > quiet_s:
            return []
        if now > last_call:
            last_call = deadline
            for model in models:
                model.end_streams()
        time.sleep(_POLL_S)
    return []


def _request_unload(names: Iterable[str], deployment: Deployment, deadline: float) -> None:
    for name in names:
        # With a timeout: a server that is still loading the model because its warm-up hangs does not respond.
        deployment.control.unload(name, max(_POLL_S, deadline - time.monotonic()))


def _unload(name: str, deployment: Deployment) -> None:
    try:
        deployment.store.remove(name)
    except (PyTritonRuntimeError, OSError) as error:
        raise PyTritonInvalidOperationError(f"The server cannot unload model {name!r}: {error}") from error


def _queue_delay_s(model: BoundModel) -> float:
    batcher = model.spec.batcher
    return 0 if batcher is None else batcher.max_queue_delay_microseconds / 1e6


def _served(models: Iterable[BoundModel], deployment: Deployment) -> Collection[tuple[str, int]]:
    """Returns the models that the server has had, if any of ``models`` wants its responses cached."""
    if not any(model.spec.config.response_cache for model in models):
        return ()
    return deployment.control.states() or ()


def _open(model: BoundModel, deployment: Deployment, served: Collection[tuple[str, int]]) -> None:
    """Opens a model's workers, and decides whether Triton may cache its responses.

    Triton's cache identifies a model by its name and version, so it would return responses of a model bound earlier.
    """
    spec = model.spec
    model.cached = (
        spec.config.response_cache
        and model.key not in served
        and isinstance(deployment.store, FolderStore)  # it is unknown what another process has served
    )
    if spec.config.response_cache and not model.cached:
        LOGGER.warning(
            "The response cache of model %r is off: it may hold responses of a model bound under that name before. "
            "Restart the server to use it.",
            spec.name,
        )
    model.open(deployment.registry.folder, deployment.on_unrecoverable, deployment.on_hang)


def _register(model: BoundModel, deployment: Deployment) -> None:
    """Waits until a model's callables exist, and adds its workers to the registry."""
    model.wait_until_loaded()
    model.register(deployment.registry)


def _discard(model: BoundModel, deployment: Deployment) -> None:
    model.unregister(deployment.registry)
    model.close(deadline=0)


def _check_same(one: BoundModel, other: BoundModel) -> None:
    """Checks that two versions of a model have the same configuration."""
    for field in ("inputs", "outputs", "config"):
        if getattr(one.spec, field) != getattr(other.spec, field):
            raise PyTritonModelConfigError(
                f"Versions {one.spec.version} and {other.spec.version} of model {one.spec.name!r} have different "
                f"{field}; Triton keeps one configuration for all versions: make them equal, or use another model name."
            )
