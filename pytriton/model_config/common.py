"""Settings of a model's batching, queueing and warm-up."""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.datatypes import Datatype, datatype_of
from pytriton.model_config.tensor import Tensor

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelWarmup",
    "QueuePolicy",
    "Tensor",
    "TimeoutAction",
    "WarmupInput",
]

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1


class DeviceKind(enum.Enum):
    """The kind of device on which Triton places an instance of a model."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """The action for a request that waited in the queue for longer than its timeout."""

    REJECT = "REJECT"
    """It fails with an error."""
    DELAY = "DELAY"
    """It is served after all requests that did not time out."""


@dataclasses.dataclass
class QueuePolicy:
    """Limits and timeouts of the requests that wait for a batch.

    Args:
        timeout_action: What happens to a request after its timeout.
        default_timeout_microseconds: Timeout of a request without one of its own, in microseconds in the queue,
            rounded down; 0 for none.
        allow_timeout_override: A request may set a timeout shorter than the default.
        max_queue_size: The number of requests that may wait; further ones are refused as unavailable. 0 for no limit.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.

    Examples:
        >>> policy = QueuePolicy(max_queue_size=100, default_timeout_microseconds=2_000_000)
        >>> batcher = DynamicBatcher(default_queue_policy=policy)
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not isinstance(self.timeout_action, TimeoutAction):
            raise PyTritonBadParameterError(
                f"QueuePolicy.timeout_action is {self.timeout_action!r}; "
                "use TimeoutAction.REJECT or TimeoutAction.DELAY."
            )
        check_microseconds("QueuePolicy.default_timeout_microseconds", self.default_timeout_microseconds)
        check_switch("QueuePolicy.allow_timeout_override", self.allow_timeout_override)
        check_integer("QueuePolicy.max_queue_size", self.max_queue_size, 0, MAX_UINT32)


@dataclasses.dataclass
class DynamicBatcher:
    """Settings of the dynamic batcher, which combines requests into batches.

    Args:
        max_queue_delay_microseconds: How long a request may wait for others to fill its batch, in microseconds, rounded
            down.
        preferred_batch_size: Batch sizes that are executed without further delay; none by default.
        preserve_ordering: Responses are sent in the order in which requests arrived. From 2.61 on, Triton only
            preserves the order within each instance, so a model that needs a total order must have a single instance.
        priority_levels: Number of priorities, 1 being the highest; 0 for a queue without priorities.
        default_priority_level: Priority of a request without one of its own; from 1 to `priority_levels`.
        default_queue_policy: Policy of every queue without one of its own.
        priority_queue_policy: Policies by priority level, from 1 to `priority_levels`.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.
        PyTritonModelConfigError: Two fields contradict each other.

    Examples:
        >>> batcher = DynamicBatcher(max_queue_delay_microseconds=500, preferred_batch_size=[4, 8])
    """

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        self.check()

    def check(self) -> None:
        """Checks the fields.

        Raises:
            PyTritonBadParameterError: A field has an invalid value.
            PyTritonModelConfigError: Two fields contradict each other.
        """
        check_microseconds("DynamicBatcher.max_queue_delay_microseconds", self.max_queue_delay_microseconds)
        check_integer("DynamicBatcher.priority_levels", self.priority_levels, 0, MAX_UINT64)
        check_integer("DynamicBatcher.default_priority_level", self.default_priority_level, 0, MAX_UINT64)
        check_switch("DynamicBatcher.preserve_ordering", self.preserve_ordering)
        for size in self.preferred_sizes:
            check_integer("A size in DynamicBatcher.preferred_batch_size", size, 1, MAX_INT32)
        self._check_priorities()
        if self.preserve_ordering:
            self._check_order()

    @property
    def preferred_sizes(self) -> list[int]:
        """The sizes in `preferred_batch_size`; none if it is None.

        Raises:
            PyTritonBadParameterError: It is not a list.
        """
        sizes = self.preferred_batch_size
        if sizes is None:
            return []
        if not isinstance(sizes, Iterable) or isinstance(sizes, (str, bytes, Mapping)):
            raise PyTritonBadParameterError(
                f"DynamicBatcher.preferred_batch_size is {sizes!r}; use a list of integers, such as [4, 8]."
            )
        return list(sizes)

    @property
    def _policies(self) -> list[QueuePolicy]:
        default = [] if self.default_queue_policy is None else [self.default_queue_policy]
        return default + list((self.priority_queue_policy or {}).values())

    def _check_priorities(self) -> None:
        if self.default_queue_policy is not None:
            _check_policy("DynamicBatcher.default_queue_policy", self.default_queue_policy)
        by_level = self.priority_queue_policy or {}
        if not isinstance(by_level, Mapping):
            raise PyTritonBadParameterError(
                f"DynamicBatcher.priority_queue_policy is {by_level!r}; use a dictionary of policies by level, such as "
                "{1: QueuePolicy(max_queue_size=8)}."
            )
        for level, policy in by_level.items():
            _check_policy(f"DynamicBatcher.priority_queue_policy[{level!r}]", policy)
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            raise PyTritonModelConfigError(
                f"DynamicBatcher has {self.priority_levels} priority_levels and default_priority_level "
                f"{self.default_priority_level}; set the default from 1 (highest) to {self.priority_levels}."
            )
        for level in by_level:
            check_integer("A level in DynamicBatcher.priority_queue_policy", level, 1, MAX_UINT64)
            if level > self.priority_levels:
                raise PyTritonModelConfigError(
                    f"DynamicBatcher.priority_queue_policy has level {level}, but there are {self.priority_levels} "
                    f"priority_levels; set priority_levels to at least {level}, or drop that level's policy."
                )

    def _check_order(self) -> None:
        if self.priority_levels > 1:
            raise PyTritonModelConfigError(
                f"DynamicBatcher has preserve_ordering and {self.priority_levels} priority_levels, "
                "and priorities change the order; drop one of the two."
            )
        for policy in self._policies:
            if policy.default_timeout_microseconds and policy.timeout_action is TimeoutAction.DELAY:
                raise PyTritonModelConfigError(
                    "DynamicBatcher has preserve_ordering and a queue policy with TimeoutAction.DELAY, "
                    "which changes the order; use TimeoutAction.REJECT, or drop preserve_ordering."
                )


def _check_policy(what: str, policy: object) -> None:
    if not isinstance(policy, QueuePolicy):
        raise PyTritonBadParameterError(f"{what} is {policy!r}; use a QueuePolicy.")


@dataclasses.dataclass
class WarmupInput:
    """One input of a warm-up request; exactly one of the three sources is set.

    Args:
        dtype: Type of the elements, the input's own.
        shape: Size of each dimension, without the batch dimension, none of them -1.
        zero_data: The input is all zeros; empty strings where the input is ``BYTES``.
        random_data: The input is random: integers of any value, floating-point numbers from 0 up to 1, and empty
            strings where the input is ``BYTES``.
        input_data_file: Path of a file, read by ``bind``. Either it was written by `numpy.save`: an array of `shape`,
            or several along a first dimension. Or it holds the raw bytes of the elements; for ``BYTES``, each element
            follows its length in four bytes, little-endian. Samples are repeated up to the batch size, or truncated to
            it.

    Raises:
        PyTritonBadParameterError: A field has an invalid value, or no source or more than one is set.
    """

    dtype: np.dtype[Any] | type[np.dtype[Any]] | type[object] | str
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None
    samples: NDArray[Any] | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    """The samples in the file, along the first dimension, once the model is bound."""

    def __post_init__(self) -> None:
        """Checks the fields."""
        try:
            dims = tuple(operator.index(dim) for dim in self.shape)
        except TypeError:
            dims = (-1,)
        if any(dim < 1 for dim in dims):
            raise PyTritonBadParameterError(
                f"WarmupInput.shape is {self.shape!r}; write a positive integer for each dimension."
            )
        try:
            self.datatype  # noqa: B018  (an unknown dtype is to be found here)
        except PyTritonBadParameterError as error:
            raise PyTritonBadParameterError(f"WarmupInput.{error.message}") from error
        check_switch("WarmupInput.zero_data", self.zero_data)
        check_switch("WarmupInput.random_data", self.random_data)
        if self.input_data_file is not None and not isinstance(self.input_data_file, (str, os.PathLike)):
            raise PyTritonBadParameterError(
                f"WarmupInput.input_data_file is {self.input_data_file!r}; write the path of a file."
            )
        sources = [name for name in ("zero_data", "random_data", "input_data_file") if getattr(self, name)]
        if len(sources) != 1:
            raise PyTritonBadParameterError(
                f"WarmupInput has {' and '.join(sources) or 'no data'}; "
                "set exactly one of zero_data, random_data and input_data_file."
            )

    @property
    def datatype(self) -> Datatype:
        """Triton's datatype of the elements."""
        return datatype_of(self.dtype)


@dataclasses.dataclass
class ModelWarmup:
    """A request that Triton sends to a model before it reports the model ready.

    Args:
        name: Its name in Triton's log.
        batch_size: The number of samples in the request; 1 for a model without batching.
        inputs: The data of each input, by name. Inputs that the callable does not need may be omitted.
        count: How often the request is sent; 0 means once, as in Triton.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.

    Examples:
        >>> warmup = ModelWarmup("zeros", 1, {"image": WarmupInput(np.uint8, (224, 224, 3), zero_data=True)}, 1)
    """

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]
    count: int

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not isinstance(self.name, str) or not self.name:
            raise PyTritonBadParameterError(f"ModelWarmup.name is {self.name!r}; give it a non-empty string.")
        check_integer("ModelWarmup.batch_size", self.batch_size, 1, MAX_INT32)
        check_integer("ModelWarmup.count", self.count, 0, MAX_UINT32)
        if not isinstance(self.inputs, Mapping):
            raise PyTritonBadParameterError(
                f"ModelWarmup.inputs is {self.inputs!r}; use a dictionary of WarmupInput by the name of the input."
            )
        for name, data in self.inputs.items():
            if not isinstance(data, WarmupInput):
                raise PyTritonBadParameterError(f"ModelWarmup.inputs[{name!r}] is {data!r}; use a WarmupInput.")


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Checks that a setting is an integer within bounds, or a float that is one.

    Args:
        what: The setting's name, as the message gives it.
        value: Its value.
        low: The minimum.
        high: The maximum.

    Raises:
        PyTritonBadParameterError: It is not.
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise PyTritonBadParameterError(f"{what} is {value!r}; {_remedy(value, low, high)}.")


def check_microseconds(what: str, value: object) -> None:
    """Checks that a duration is a number of microseconds; a fraction is allowed, as in ``0.0079 * 1e6``.

    Args:
        what: The setting's name, as the message gives it.
        value: Its value.

    Raises:
        PyTritonBadParameterError: It is not.
    """
    if isinstance(value, (float, np.floating)) and 0 < value < math.inf:
        value = math.floor(value)
    check_integer(what, value, 0, MAX_UINT64)


def check_switch(what: str, value: object) -> None:
    """Checks that an on/off setting is neither text nor a number: ``"false"`` and 8 would count as true.

    Args:
        what: The setting's name, as the message gives it.
        value: Its value.

    Raises:
        PyTritonBadParameterError: It is one; 0 and 1 are allowed.
    """
    if isinstance(value, (str, bytes)) or (isinstance(value, (int, float)) and value not in (0, 1)):
        raise PyTritonBadParameterError(f"{what} is {value!r}; use True or False.")


def _remedy(value: object, low: int, high: int) -> str:
    """Returns what to do about a value that is not an integer from ``low`` to ``high``."""
    if isinstance(value, int) and value > high:
        return f"use an integer from {low} to {high}"
    return f"use an integer from {low} up{', not text' if isinstance(value, str) else ''}"
