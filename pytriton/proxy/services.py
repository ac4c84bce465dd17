"""What a worker can ask of the server: inference by other models, its log, its metrics, its models.

Each model instance has a service channel of its own, beside the one that its batches travel on: a socket and an arena
for each direction. `current` finds the one that belongs to the call that is being made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from pytriton.proxy.calls import Call, LogLevel, MetricKind, Reply

CALLER: ContextVar[Caller] = ContextVar("pytriton_caller")
"""Who asks, in a worker that is calling its inference callable."""

CURRENT_BATCH = 0
"""The batch of a caller whose instance has one batch at a time."""


class Caller(NamedTuple):
    """An inference callable that is being called.

    Attributes:
        services: Of its instance.
        batch: Sequence of the batch that it is called for, or ``CURRENT_BATCH``.
    """

    services: Services
    batch: int


def current() -> Services:
    """The services of the call that is being made; else of the only model instance that this process serves.

    Raises:
        PyTritonInvalidOperationError: There is no such call, and not exactly one instance.
    """
    raise NotImplementedError


class Services:
    """The worker's end of a model instance's service channel.

    May be used by any threads and event loops at the same time. Nothing is sent before it is first used.

    Args:
        fd: The socket, which it owns from now on.
    """

    def __init__(self, fd: int) -> None:
        """Sends nothing yet."""

    def infer(self, call: Call, timeout_s: float | None = None) -> Reply:
        """Has a model infer, and waits for its one response.

        Args:
            call: What is asked. Inputs are copied into shared memory once, where the model finds them.
            timeout_s: How long to wait. After that the request is cancelled, and the reply's error says so.

        Returns:
            The response. Whatever the server reports is its ``error``, that it does not know the model among it. A
            decoupled model that answers with none, or with several responses, makes an error as well.

        Raises:
            PyTritonInvalidOperationError: The server is gone, or this is a fork of the process that had the channel.
            PyTritonBadParameterError: An input is no array, or has a dtype that Triton does not have.
            ArenaError: There is no room for the inputs.
        """
        raise NotImplementedError

    async def ainfer(self, call: Call, timeout_s: float | None = None) -> Reply:
        """The same in an event loop. The request is cancelled when the task is."""
        raise NotImplementedError

    def stream(self, call: Call, timeout_s: float | None = None) -> Stream:
        """Has a model infer, decoupled or not, and gives its responses as they come.

        Args:
            call: As in `infer`.
            timeout_s: How long to wait for each response.

        Raises:
            PyTritonInvalidOperationError, PyTritonBadParameterError, ArenaError: As in `infer`.
        """
        raise NotImplementedError

    def astream(self, call: Call, timeout_s: float | None = None) -> AsyncStream:
        """The same for ``async for``, in the event loop that is running."""
        raise NotImplementedError

    def log(self, level: LogLevel, message: str, file: str = "pytriton", line: int = 0) -> None:
        """Writes a line into the server's log, and does not wait for it."""
        raise NotImplementedError

    def load_model(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Loads a model, or loads it anew.

        Args:
            name: Its name.
            config: Its configuration as JSON, in place of the one in the repository.
            files: What its folder has, by path within it (``"1/model.py"``), in place of what is in the repository.

        Raises:
            PyTritonInferenceError: The server could not.
        """
        raise NotImplementedError

    def unload_model(self, name: str, dependents: bool = False) -> None:
        """Unloads a model, and what depends on it.

        Raises:
            PyTritonInferenceError: The server could not.
        """
        raise NotImplementedError

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model can infer; -1 stands for any version that Triton may choose.

        Raises:
            PyTritonInferenceError: The server could not say.
        """
        raise NotImplementedError

    def metric_family(self, name: str, description: str, kind: MetricKind) -> int:
        """Makes a family of metrics, or finds the one that another instance has made alike.

        Returns:
            Its number, for `metric` and `delete_metric_family`.

        Raises:
            PyTritonInferenceError: The server could not, or has one of another kind.
        """
        raise NotImplementedError

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None = None) -> int:
        """Makes a metric, or finds the one that has the same labels.

        Args:
            family: Number of its family.
            labels: By name.
            buckets: Upper bounds, ascending, of a histogram's.

        Returns:
            Its number, for the functions below.

        Raises:
            PyTritonInferenceError: The server could not.
        """
        raise NotImplementedError

    def increment(self, metric: int, value: float) -> None:
        """Adds to a counter or a gauge.

        Raises:
            PyTritonInferenceError: The server could not: the counter would shrink, or it is a histogram.
        """
        raise NotImplementedError

    def set(self, metric: int, value: float) -> None:
        """Sets a gauge.

        Raises:
            PyTritonInferenceError: The server could not: it is no gauge.
        """
        raise NotImplementedError

    def observe(self, metric: int, value: float) -> None:
        """Adds an observation to a histogram.

        Raises:
            PyTritonInferenceError: The server could not: it is no histogram.
        """
        raise NotImplementedError

    def value(self, metric: int) -> float:
        """What a counter or a gauge has come to.

        Raises:
            PyTritonInferenceError: The server could not say: it is a histogram.
        """
        raise NotImplementedError

    def delete_metric(self, metric: int) -> None:
        """Lets go of a metric, which disappears when nobody has it any more; does not wait, and cannot fail."""
        raise NotImplementedError

    def delete_metric_family(self, family: int) -> None:
        """Lets go of a family, in the same way; its metrics keep it."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the channel: what is in flight is cancelled, and whoever waits for it is told so."""
        raise NotImplementedError


class Stream(Iterator[Reply]):
    """Responses to one request, as they come. It ends behind the final one; closing or dropping it cancels the rest."""

    def __next__(self) -> Reply:
        """Waits for the next response. One with an error is given like any other, and is the last."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Has the server stop; what has come, and what comes until it has stopped, is dropped."""
        raise NotImplementedError


class AsyncStream(AsyncIterator[Reply]):
    """The same in an event loop."""

    async def __anext__(self) -> Reply:
        """Waits for the next response."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Has the server stop; what has come, and what comes until it has stopped, is dropped."""
        raise NotImplementedError
