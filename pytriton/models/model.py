"""One binding: a model and the inference callables that serve it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytriton.decorators.ordering import check_infer_func
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import ProcessInstance
from pytriton.process.spec import ProcessSpec
from pytriton.process.supervisor import WorkerSupervisor
from pytriton.proxy.registry import Registry
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.worker.execution_mode import check_callable
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import ENDED, InferenceCallable, Worker

_numbers = itertools.count(1)


class BoundModel:
    """One version of a model, bound to inference callables.

    Args:
        spec: What the model is.
        infer_funcs: What serves each instance: an inference callable, or a process that makes one.

    Raises:
        PyTritonBadParameterError: An inference callable cannot be called, or a process not be given what it needs.
        PyTritonModelConfigError: An inference callable yields responses, and the model is not decoupled.
        PyTritonValidationError: Its decorators do not fit each other or the model.
    """

    def __init__(self, spec: ModelSpec, infer_funcs: Sequence[InferenceCallable | ProcessInstance]) -> None:
        """Checks the callables; `open` lets them be called."""
        self._sources: list[InferenceCallable | ProcessSpec] = []
        for number, infer_func in enumerate(infer_funcs):
            if isinstance(infer_func, ProcessInstance):
                self._sources.append(ProcessSpec.of(infer_func, spec, number))
                continue
            check_callable(infer_func, spec)
            check_infer_func(infer_func, spec)
            self._sources.append(infer_func)
        self.spec = spec
        self.cached = spec.config.response_cache
        """Whether Triton may answer from its response cache."""
        self._binding = f"{spec.name}-{spec.version}-{next(_numbers)}"
        self._workers: list[Worker | WorkerSupervisor] = []
        self._loop: EventLoop | None = None

    @property
    def connections(self) -> int:
        """How many model instances are connected."""
        return sum(worker.connections for worker in self._workers)

    def open(self, folder: Path, on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]) -> None:
        """Creates the workers, unless they exist, and starts their processes.

        Args:
            folder: The folder of mode 0700 for sockets.
            on_unrecoverable: Called with a PyTritonUnrecoverableError that an inference callable raised.
        """
        if self._workers:
            return
        signature = Signature(self.spec)
        self._loop = EventLoop(f"pytriton-loop-{self.spec.name}")
        self._workers = [
            WorkerSupervisor(source, folder, on_unrecoverable)
            if isinstance(source, ProcessSpec)
            else Worker(source, signature, on_unrecoverable, self._loop)
            for source in self._sources
        ]

    def register(self, registry: Registry) -> None:
        """Lets instances in the server find the workers."""
        registry.add(self._binding, self._workers)

    def unregister(self, registry: Registry) -> None:
        """Admits no more instances."""
        registry.remove(self._binding)

    def wait_until_loaded(self) -> None:
        """Waits until processes have made their inference callables.

        Raises:
            PyTritonInvalidOperationError: One has not.
        """
        for worker in self._workers:
            if isinstance(worker, WorkerSupervisor):
                worker.wait_until_loaded()

    def files(self, registry: Registry) -> dict[str, bytes]:
        """What the server reads of this version, besides the configuration.

        Args:
            registry: Where the instances find their workers.

        Returns:
            Contents by path within the model's folder.
        """
        warmups = sum(max(warmup.count, 1) for warmup in self.spec.config.model_warmup or ())
        worker = f"registry={registry.endpoint}\nbinding={self._binding}\nwarmups={warmups}\n"
        if self.cached:
            worker += f"cached_output={self.spec.outputs[0].name}\n"
        files = {f"{self.spec.version}/worker": worker.encode()}
        for name, source in self.spec.warmup_files().items():
            files[f"warmup/{name}"] = source.read_bytes()
        return files

    def retire(self, registry: Registry) -> None:
        """Admits no more instances, and closes each worker once its instances have disconnected."""
        self.unregister(registry)
        for worker in self._workers:
            worker.retire()
        if self._loop is not None:
            self._loop.retire()

    def idle_since(self) -> float:
        """Since when no inference callable has had anything to do, as ``time.monotonic()`` tells it."""
        return max(worker.idle_since() for worker in self._workers)

    def end_streams(self) -> None:
        """Ends coroutines and streams, and tells their clients why."""
        for worker in self._workers:
            worker.end_streams(ENDED)

    def close(self, deadline: float) -> None:
        """Closes the workers, and stops their processes.

        Args:
            deadline: The ``time.monotonic()`` until which running callables may finish.
        """
        for worker in self._workers:
            if isinstance(worker, WorkerSupervisor):
                worker.stop()
        for worker in self._workers:
            worker.close(max(0.0, deadline - time.monotonic()))
        self._workers = []
        if self._loop is not None:
            self._loop.stop()
