"""The sources of a bound model's inference callables, one for each instance."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

from pytriton.decorators.ordering import check_infer_func
from pytriton.decorators.parameters import check_parameters
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.models.external_instance import ExternalInstance, InstanceOpener, OpenedInstance
from pytriton.models.instance_worker import InstanceWorker, LocalWorker, ProcessWorker
from pytriton.models.opened_worker import OpenedWorker
from pytriton.process.instance import FactoryInstance, ProcessInstance
from pytriton.process.spec import ProcessSpec
from pytriton.proxy.worker.execution_mode import check_callable
from pytriton.proxy.worker.worker import InferenceCallable


@dataclasses.dataclass(frozen=True)
class Opening:
    """A model whose instances are being opened.

    Attributes:
        model: The model's name.
        folder: The folder of mode 0700 for sockets.
        create: Creates the worker of an inference callable.
        on_unrecoverable: Called with a PyTritonUnrecoverableError that an inference callable raised.
        on_failing: Called with True when an instance cannot be restarted, and with False when it has been, or is
            closed.
        opened: The external instances that were opened so far.
    """

    model: str
    folder: Path
    create: Callable[[InferenceCallable], LocalWorker]
    on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]
    on_failing: Callable[[bool], None]
    opened: list[OpenedInstance] = dataclasses.field(default_factory=list)


class InstanceSource(abc.ABC):
    """The source of an instance's inference callable, captured in `Triton.bind`."""

    @property
    def description(self) -> str:
        """The docstring of the inference callable; empty if it has none, or is created elsewhere."""
        return ""

    @abc.abstractmethod
    def open(self, opening: Opening) -> InstanceWorker:
        """Creates the worker of the instance, which may load in the background.

        Raises:
            PyTritonInvalidOperationError: The instance cannot be started.
        """

    @abc.abstractmethod
    def is_same(self, other: InstanceSource) -> bool:
        """Returns whether another source has the very same callable."""


class FunctionSource(InstanceSource):
    """An inference callable of this process."""

    def __init__(self, infer_func: InferenceCallable) -> None:
        self._infer_func = infer_func

    @property
    def description(self) -> str:
        """See `InstanceSource`."""
        function = inspect.unwrap(self._infer_func)
        if not inspect.isroutine(function):
            function = type(function).__call__  # for an object: its class's docstring describes something else
        return inspect.cleandoc(function.__doc__ or "")

    def open(self, opening: Opening) -> InstanceWorker:
        """See `InstanceSource`."""
        return opening.create(self._infer_func)

    def is_same(self, other: InstanceSource) -> bool:
        """See `InstanceSource`."""
        return isinstance(other, FunctionSource) and self._infer_func is other._infer_func


@dataclasses.dataclass(frozen=True)
class ProcessSource(InstanceSource):
    """A separate process, which creates the inference callable."""

    spec: ProcessSpec

    def open(self, opening: Opening) -> InstanceWorker:
        """See `InstanceSource`."""
        return ProcessWorker(self.spec, opening.folder, opening.on_unrecoverable, opening.on_failing)

    def is_same(self, other: InstanceSource) -> bool:
        """See `InstanceSource`."""
        return self == other


@dataclasses.dataclass(frozen=True)
class ExternalSource(InstanceSource):
    """An instance that another package opens."""

    opener: InstanceOpener

    def open(self, opening: Opening) -> InstanceWorker:
        """See `InstanceSource`."""
        instance = self.opener.open(tuple(opening.opened), opening.on_failing)
        opening.opened.append(instance)
        return OpenedWorker(instance, opening.create, opening.model)

    def is_same(self, other: InstanceSource) -> bool:
        """See `InstanceSource`."""
        return self == other


def source_of(infer_func: InferenceCallable | FactoryInstance, spec: ModelSpec, number: int) -> InstanceSource:
    """Returns the source of an instance of a model, checked.

    Args:
        infer_func: The inference callable, or an instance that creates one elsewhere.
        spec: The model.
        number: The index of the instance, from 0.

    Raises:
        PyTritonBadParameterError: It is not callable, its parameters do not fit, or it cannot be sent to its process.
        PyTritonModelConfigError: It yields responses, but the model is not decoupled.
        PyTritonValidationError: Its decorators do not fit each other or the model.
    """
    if isinstance(infer_func, ProcessInstance):
        return ProcessSource(ProcessSpec.of(infer_func, spec, number))
    if isinstance(infer_func, ExternalInstance):
        return ExternalSource(infer_func.prepare(spec, number))
    check_callable(infer_func, spec)
    assert not isinstance(infer_func, FactoryInstance)
    check_infer_func(infer_func, spec)
    check_parameters(infer_func, spec)
    return FunctionSource(infer_func)
