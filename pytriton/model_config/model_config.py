"""Settings of a model."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.common import MAX_INT32, DynamicBatcher, ModelWarmup, check_integer, check_switch


@dataclasses.dataclass
class ModelConfig:
    """Settings of a model: batching, queueing, streams and warm-up.

    Args:
        batching: Every input and output has the batch as its first dimension, and Triton combines requests into
            batches.
        max_batch_size: The maximum number of samples in a batch. Ignored if `batching` is False.
        batcher: How requests are combined into batches; None if they are not. Ignored if `batching` is False.
        response_cache: Triton serves repeated requests from its cache (`TritonConfig.cache_config`).
        decoupled: The inference callable may send any number of responses to a request.
        model_warmup: Requests that Triton sends before it reports the model ready.
        max_in_flight: The number of batches that an instance of a coroutine function or a generator serves at a time.
            By default, it is 256 for async functions, and 32 for plain generators, which have a thread for each.
            Further requests wait in Triton's queue.
        watchdog_secs: Seconds after which a call of the inference callable, or a step of a stream, counts as hanging.
            Its stack is logged, and the model is not ready; a process instance is restarted. Off by default.
        gpu_tensors: Leave tensors that are on a GPU there. Such inputs are of the type `GpuTensor`; outputs stay there
            if the client requests them there. By default, inputs are copied to memory.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.
        PyTritonModelConfigError: Two fields contradict each other.

    Examples:
        >>> config = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=500))
    """

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = dataclasses.field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: list[ModelWarmup] | None = None
    max_in_flight: int | None = None
    watchdog_secs: float | None = None
    gpu_tensors: bool = False

    def __post_init__(self) -> None:
        """Checks the fields."""
        self.check()

    def check(self) -> None:
        """Checks the fields, which may have been set since the configuration was made.

        Raises:
            PyTritonBadParameterError: A field has an invalid value.
            PyTritonModelConfigError: Two fields contradict each other.
        """
        for switch in ("batching", "response_cache", "decoupled", "gpu_tensors"):
            check_switch(f"ModelConfig.{switch}", getattr(self, switch))
        if self.batching and not isinstance(self.max_batch_size, bool) and self.max_batch_size == 0:
            raise PyTritonBadParameterError(
                "ModelConfig.max_batch_size is 0; use an integer from 1 up, or batching=False for a model "
                "without batches."
            )
        check_integer("ModelConfig.max_batch_size", self.max_batch_size, 1 if self.batching else 0, MAX_INT32)
        self.max_batch_size = int(self.max_batch_size)
        if self.max_in_flight is not None:
            check_integer("ModelConfig.max_in_flight", self.max_in_flight, 1, MAX_INT32)
        if self.watchdog_secs is not None and not _is_duration(self.watchdog_secs):
            raise PyTritonBadParameterError(
                f"ModelConfig.watchdog_secs is {self.watchdog_secs!r}; use a positive number, or None."
            )
        if self.batcher is not None:
            if not isinstance(self.batcher, DynamicBatcher):
                raise PyTritonBadParameterError(
                    f"ModelConfig.batcher is {self.batcher!r}; use a DynamicBatcher, or None."
                )
            self.batcher.check()
        if self.batching and self.batcher is not None:
            for size in self.batcher.preferred_sizes:
                if size > self.max_batch_size:
                    raise PyTritonModelConfigError(
                        f"DynamicBatcher.preferred_batch_size has {size}, over the ModelConfig.max_batch_size of "
                        f"{self.max_batch_size}; raise max_batch_size, or drop that size."
                    )
        if self.decoupled and self.response_cache:
            raise PyTritonModelConfigError(
                "ModelConfig has both decoupled and response_cache, and Triton caches no decoupled responses; "
                "set one of them to False."
            )
        limit = self.max_batch_size if self.batching else 1
        for warmup in self._warmups():
            if not isinstance(warmup, ModelWarmup):
                raise PyTritonBadParameterError(f"ModelConfig.model_warmup has {warmup!r}; use a ModelWarmup.")
            if warmup.batch_size > limit:
                raise PyTritonModelConfigError(
                    f"ModelWarmup {warmup.name!r} has batch_size {warmup.batch_size}, over the {limit} of its model; "
                    f"use at most {limit}."
                )

    def _warmups(self) -> Iterable[ModelWarmup]:
        if self.model_warmup is None:
            return ()
        if not isinstance(self.model_warmup, Iterable) or isinstance(self.model_warmup, str):
            raise PyTritonBadParameterError(
                f"ModelConfig.model_warmup is {self.model_warmup!r}; use a list: model_warmup=[ModelWarmup(...)]."
            )
        return self.model_warmup


def _is_duration(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return math.isfinite(value) and float(value) > 0
