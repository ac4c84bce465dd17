"""The deployment of bound models to a server: opens, loads and unloads them."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Iterable, Sequence

from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
)
from pytriton.models.events import ModelEvents
from pytriton.models.model import BoundModel
from pytriton.models.store import FolderStore, ModelStore, StoreError
from pytriton.proxy.registry import Registry
from pytriton.server.control import ServerControl
from pytriton.utils.limits import allow_files, limits_hint

LOGGER = logging.getLogger(__name__)

_FILES_PER_INSTANCE = 6  # sockets, shared memory, and the connections over which they are passed
_MIN_TIMEOUT_S = 0.01


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A server to which models are deployed.

    Attributes:
        store: Brings models to the server.
        registry: The registry in which instances look up their workers.
        control: Loads and unloads models.
        unloads_all: Whether the server stops when its models are undeployed, and supports `ALL_MODELS`.
        events: What to call while the models are served.
    """

    store: ModelStore
    registry: Registry
    control: ServerControl
    unloads_all: bool
    events: ModelEvents

    def open(self, models: Sequence[BoundModel]) -> None:
        """Opens the workers of models, which may create their callables in the background.

        Raises:
            PyTritonInvalidOperationError: A worker cannot be started.
        """
        allow_files(_FILES_PER_INSTANCE * sum(model.instances for model in models), "its models")
        served = self._served(models)
        for model in models:
            self._open(model, served)

    def register(self, models: Sequence[BoundModel]) -> None:
        """Waits until the callables of models that are open exist, and adds their workers to the registry.

        Raises:
            PyTritonInvalidOperationError: A callable cannot be created.
        """
        for model in models:
            model.wait_until_loaded()
            model.register(self.registry)

    def load(self, versions: Sequence[BoundModel]) -> None:
        """Loads a model, or loads it again.

        Args:
            versions: All versions to serve, which are open.

        Raises:
            StoreError: The model's files cannot be written.
            PyTritonInvalidOperationError: The server refuses the model.
        """
        spec = versions[-1].spec
        files: dict[str, bytes] = {}
        try:
            config = dataclasses.replace(spec.config, response_cache=all(model.cached for model in versions))
            instances = max(model.spec.instances for model in versions)
            spec = dataclasses.replace(spec, config=config, instances=instances)
            for model in versions:
                files |= model.files(self.registry)
            self.store.put(spec, [model.spec.version for model in versions], files)
        except StoreError:
            raise
        except (PyTritonRuntimeError, PyTritonBadParameterError, OSError) as error:
            raise PyTritonInvalidOperationError(
                f"The server cannot load model {spec.name!r}: {error}{limits_hint()}"
            ) from error

    def remove(self, name: str) -> None:
        """Unloads a model, and removes its files.

        Raises:
            PyTritonInvalidOperationError: The server cannot unload it.
        """
        try:
            self.store.remove(name)
        except (PyTritonRuntimeError, OSError) as error:
            raise PyTritonInvalidOperationError(f"The server cannot unload model {name!r}: {error}") from error

    def request_unload(self, names: Iterable[str], deadline: float) -> None:
        """Begins to unload models.

        Args:
            names: The models' names, or only `ALL_MODELS`.
            deadline: The ``time.monotonic()`` until which the server may respond; one that is still loading a model
                because its warm-up hangs does not.

        Raises:
            PyTritonRuntimeError: The server cannot unload one, or is gone.
        """
        for name in names:
            self.store.unload(name, max(_MIN_TIMEOUT_S, deadline - time.monotonic()))

    def discard(self, model: BoundModel) -> None:
        """Closes a model whose deployment has failed."""
        model.unregister(self.registry)
        model.close(deadline=0)

    def _served(self, models: Iterable[BoundModel]) -> Collection[tuple[str, int]]:
        """Returns the models that the server has had, if any of ``models`` uses the response cache."""
        if not any(model.spec.config.response_cache for model in models):
            return ()
        return self.control.states() or ()

    def _open(self, model: BoundModel, served: Collection[tuple[str, int]]) -> None:
        """Opens a model's workers, and decides whether Triton may cache its responses.

        Triton's cache identifies a model by its name and version, so it might return responses of a model that was
        bound earlier.
        """
        spec = model.spec
        model.cached = (
            spec.config.response_cache
            and model.key not in served
            and isinstance(self.store, FolderStore)  # it is unknown what another process has served
        )
        if spec.config.response_cache and not model.cached:
            LOGGER.warning(
                "The response cache of model %r is off: it may hold responses of a model bound under that name before. "
                "Restart the server to use it.",
                spec.name,
            )
        model.open(self.registry.folder, self.events)
