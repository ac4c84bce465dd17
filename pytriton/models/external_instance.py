"""The interface of instances that another package opens when a model is loaded, such as on other machines."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import FactoryInstance
from pytriton.proxy.worker.worker import InferenceCallable


class OpenedInstance(Protocol):
    """An instance of a model that is loaded, or being loaded."""

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""

    def wait_until_loaded(self) -> InferenceCallable:
        """Waits until it can serve.

        Returns:
            The inference callable for a thread or an event loop of this process.

        Raises:
            PyTritonInvalidOperationError: It cannot be loaded.
        """

    def stop(self) -> None:
        """Tells it to stop, without waiting."""

    def close(self, timeout_s: float) -> None:
        """Waits for its end after `stop`, and kills it after a timeout.

        Args:
            timeout_s: How long to wait.
        """


class InstanceOpener(abc.ABC):
    """Opens an instance, from the data that `Triton.bind` captured. Equal openers open the same instance."""

    @abc.abstractmethod
    def open(self, siblings: Sequence[OpenedInstance], on_failing: Callable[[bool], None]) -> OpenedInstance:
        """Starts to load the instance, without waiting.

        Args:
            siblings: The instances of the same model that were opened before.
            on_failing: Called with True when the instance cannot be restarted, and with False when it has been, or is
                closed.

        Raises:
            PyTritonInvalidOperationError: It cannot be started.
        """


@dataclasses.dataclass(frozen=True)
class ExternalInstance(FactoryInstance, abc.ABC):
    """An instance of a model that another package opens when the model is loaded."""

    @abc.abstractmethod
    def prepare(self, spec: ModelSpec, number: int) -> InstanceOpener:
        """Captures what the instance needs, when it is bound.

        Args:
            spec: The model.
            number: The index of the instance, from 0.

        Raises:
            PyTritonBadParameterError: It is invalid.
        """
