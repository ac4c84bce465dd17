"""One binding: a model and the inference callables that serve it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError, PyTritonUnrecoverableError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.kind import kind_of
from pytriton.proxy.registry import Registry
from pytriton.proxy.signature import Signature
from pytriton.proxy.threads import EventLoop
from pytriton.proxy.worker import ENDED, InferenceCallable, Worker

_numbers = itertools.count(1)


class Model:
    """One version of a model, bound to inference callables.

    Args:
        spec: What the model is.
        infer_funcs: One inference callable per instance.

    Raises:
        PyTritonBadParameterError: Something among the inference callables cannot be called.
        PyTritonModelConfigError: It yields responses, and the model is not decoupled.
    """

    def __init__(self, spec: ModelSpec, infer_funcs: Sequence[InferenceCallable]) -> None:
        """Checks the callables; `open` lets them be called."""
        for infer_func in infer_funcs:
            if not callable(infer_func):
                raise PyTritonBadParameterError(
                    f"Model {spec.name!r}: infer_func is {infer_func!r}, which cannot be called; give a function, or "
                    "a list of functions for several instances."
                )
            kind = kind_of(infer_func)
            if kind.yields and not spec.decoupled:
                raise PyTritonModelConfigError(
                    f"Model {spec.name!r}: infer_func is {kind.value}, which may answer a request with several "
                    "responses; set ModelConfig(decoupled=True), or return the responses instead of yielding them."
                )
        self.spec = spec
        self._infer_funcs = tuple(infer_funcs)
        self.cached = spec.config.response_cache
        """Whether Triton may answer from its response cache."""
        self._binding = f"{spec.name}-{spec.version}-{next(_numbers)}"
        self._workers: list[Worker] = []
        self._loop: EventLoop | None = None

    @property
    def connections(self) -> int:
        """How many model instances are connected."""
        return sum(worker.connections for worker in self._workers)

    def open(self, registry: Registry, on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]) -> None:
        """Lets instances in the server find the inference callables."""
        signature = Signature(self.spec)
        self._loop = EventLoop(f"pytriton-loop-{self.spec.name}")
        self._workers = [
            Worker(infer_func, signature, on_unrecoverable, self._loop) for infer_func in self._infer_funcs
        ]
        registry.add(self._binding, self._workers)

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
        """Admits no more instances; those that are connected finish what they have."""
        registry.remove(self._binding)
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

    def close(self, registry: Registry, timeout_s: float) -> None:
        """Disconnects all instances.

        Args:
            registry: Where they found their workers.
            timeout_s: How long to wait for callables that are running.
        """
        self.retire(registry)
        for worker in self._workers:
            worker.close(timeout_s)
        self._workers = []
        if self._loop is not None:
            self._loop.stop()
