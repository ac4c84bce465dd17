"""A bound model: a model version and the inference callables that serve it."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from pytriton.model_config.model_spec import ModelSpec
from pytriton.models.events import FailingInstances, ModelEvents
from pytriton.models.instance_source import Opening, source_of
from pytriton.models.instance_worker import InstanceWorker, LocalWorker
from pytriton.process.instance import FactoryInstance
from pytriton.proxy.registry import Registry
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import ENDED, InferenceCallable

_numbers = itertools.count(1)


class BoundModel:
    """One version of a model, bound to inference callables.

    Args:
        spec: The model.
        infer_funcs: For each instance, an inference callable, or an instance that creates one elsewhere.

    Raises:
        PyTritonBadParameterError: An inference callable is not callable, its parameters do not fit, or it cannot be
            sent to its process.
        PyTritonModelConfigError: An inference callable yields responses, but the model is not decoupled.
        PyTritonValidationError: Its decorators do not fit each other or the model.
    """

    def __init__(self, spec: ModelSpec, infer_funcs: Sequence[InferenceCallable | FactoryInstance]) -> None:
        """Checks the callables; `open` creates their workers."""
        self._sources = [source_of(infer_func, spec, number) for number, infer_func in enumerate(infer_funcs)]
        self.spec = spec
        self.cached = spec.config.response_cache
        """Whether Triton may use its response cache."""
        self._binding = f"{spec.name}-{spec.version}-{next(_numbers)}"
        self._workers: list[InstanceWorker] = []
        self._loop: EventLoop | None = None

    def is_same(self, other: BoundModel) -> bool:
        """Returns whether another model has the same specification, and the very same inference callables."""
        return self.spec == other.spec and all(
            one.is_same(another) for one, another in zip(self._sources, other._sources, strict=True)
        )

    @property
    def key(self) -> tuple[str, int]:
        """Its name and version."""
        return self.spec.name, self.spec.version

    @property
    def description(self) -> str:
        """The docstring of the first inference callable; empty if it has none."""
        return self._sources[0].description

    @property
    def instances(self) -> int:
        """Number of its inference callables."""
        return len(self._sources)

    @property
    def restarts(self) -> int:
        """Number of restarts of its instances in other processes."""
        return sum(worker.restarts for worker in self._workers)

    @property
    def connections(self) -> int:
        """Number of connected model instances."""
        return sum(worker.connections for worker in self._workers)

    def open(self, folder: Path, events: ModelEvents) -> None:
        """Creates the workers, unless they exist, and starts their processes.

        Args:
            folder: The folder of mode 0700 for sockets.
            events: What to call while the model is served.

        Raises:
            PyTritonInvalidOperationError: An instance cannot be started.
        """
        if self._workers:
            return
        name = self.spec.name
        self._loop = EventLoop(f"pytriton-loop-{name}")
        create = functools.partial(
            LocalWorker,
            signature=Signature(self.spec),
            on_unrecoverable=events.on_unrecoverable,
            loop=self._loop,
            on_hang=functools.partial(events.on_hang, name),
        )
        failing = FailingInstances(self.instances, functools.partial(events.on_failing, name))
        opening = Opening(name, folder, create, events.on_unrecoverable, failing.note)
        for source in self._sources:
            self._workers.append(source.open(opening))

    def wait_until_loaded(self) -> None:
        """Waits until the inference callables of other processes have been created.

        Raises:
            PyTritonInvalidOperationError: One could not be created.
        """
        for worker in self._workers:
            worker.wait_until_loaded()

    def register(self, registry: Registry) -> None:
        """Adds the workers, which must be loaded, to the registry."""
        registry.add(self._binding, [worker.admitting for worker in self._workers])

    def unregister(self, registry: Registry) -> None:
        """Removes the workers from the registry, so that no more instances are admitted."""
        registry.remove(self._binding)

    def files(self, registry: Registry) -> dict[str, bytes]:
        """Returns the files of this version besides the configuration.

        Args:
            registry: The registry in which the instances look up their workers.

        Returns:
            The files' contents by their path in the model's folder.
        """
        worker = f"registry={registry.endpoint}\nbinding={self._binding}\n"
        worker += f"controller={registry.services.path}\n"
        if self.cached:
            worker += f"cached_output={self.spec.outputs[0].name}\n"
        return {f"{self.spec.version}/worker": worker.encode()}

    def retire(self, registry: Registry) -> None:
        """Admits no more instances, and closes each worker once its instances have disconnected."""
        self.unregister(registry)
        for worker in self._workers:
            worker.retire()
        if self._loop is not None:
            self._loop.retire()

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which all inference callables have been idle."""
        return max((worker.idle_since() for worker in self._workers), default=0.0)

    def end_streams(self) -> None:
        """Ends coroutines and streams, and sends their clients the reason."""
        for worker in self._workers:
            worker.end_streams(ENDED)

    def stop(self) -> None:
        """Begins to stop the workers, without waiting; those that create their callables end at once."""
        for worker in self._workers:
            worker.stop()

    def close(self, deadline: float) -> None:
        """Closes the workers, and stops their processes.

        Args:
            deadline: The ``time.monotonic()`` until which running callables may finish.
        """
        self.stop()
        for worker in self._workers:
            worker.close(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.join(deadline)
        self._workers = []
        if self._loop is not None:
            self._loop.stop()
            self._loop.join(max(0.0, deadline - time.monotonic()))
