"""Settings of a model's batching, queueing and warm-up."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Sequence
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
        default_timeout_microseconds: Timeout of a request that names none, in microseconds; 0 for none.
        allow_timeout_override: A request may name a timeout shorter than the default.
        max_queue_size: Requests that may wait; more are refused. 0 is no limit.

    Raises:
        PyTritonBadParameterError: A field has a value that cannot work.
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
        check_integer("QueuePolicy.default_timeout_microseconds", self.default_timeout_microseconds, 0, MAX_UINT64)
        check_integer("QueuePolicy.max_queue_size", self.max_queue_size, 0, MAX_UINT32)


@dataclasses.dataclass
class DynamicBatcher:
    """Settings of the dynamic batcher, which combines requests into batches.

    Args:
        max_queue_delay_microseconds: How long a request may wait for others to fill its batch, in microseconds.
        preferred_batch_size: Batch sizes that are sent off at once; none is preferred by default.
        preserve_ordering: Responses leave in the order in which requests came. Triton from 2.61 on keeps the order of
            each instance's requests alone, so a model whose order counts needs a single instance there.
        priority_levels: How many priorities there are, 1 being the highest; 0 is a queue without priorities.
        default_priority_level: Priority of a request that names none; from 1 to `priority_levels`.
        default_queue_policy: Policy of every queue without one of its own.
        priority_queue_policy: Policies by priority level, from 1 to `priority_levels`.

    Raises:
        PyTritonBadParameterError: A field has a value that cannot work.
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
            PyTritonBadParameterError: A field has a value that cannot work.
            PyTritonModelConfigError: Two fields contradict each other.
        """
        check_integer("DynamicBatcher.max_queue_delay_microseconds", self.max_queue_delay_microseconds, 0, MAX_UINT64)
        check_integer("DynamicBatcher.priority_levels", self.priority_levels, 0, MAX_UINT64)
        check_integer("DynamicBatcher.default_priority_level", self.default_priority_level, 0, MAX_UINT64)
        for size in self.preferred_batch_size or ():
            check_integer("A size in DynamicBatcher.preferred_batch_size", size, 1, MAX_INT32)
        self._check_priorities()
        if self.preserve_ordering:
            self._check_order()

    @property
    def _policies(self) -> list[QueuePolicy]:
        default = [] if self.default_queue_policy is None else [self.default_queue_policy]
        return default + list((self.priority_queue_policy or {}).values())

    def _check_priorities(self) -> None:
        if self.default_queue_policy is not None:
            _check_policy("DynamicBatcher.default_queue_policy", self.default_queue_policy)
        for level, policy in (self.priority_queue_policy or {}).items():
            _check_policy(f"DynamicBatcher.priority_queue_policy[{level!r}]", policy)
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            raise PyTritonModelConfigError(
                f"DynamicBatcher has {self.priority_levels} priority_levels and default_priority_level "
                f"{self.default_priority_level}; set the default from 1 (highest) to {self.priority_levels}."
            )
        for level in self.priority_queue_policy or {}:
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
        input_data_file: Path of a file, read by ``bind``. Either `numpy.save` has written it: an array of `shape`, or
            several along a first dimension. Or it has the elements as their bytes lie in memory; for ``BYTES`` each
            element follows its length in four bytes, little-endian. Samples are repeated up to the batch size, or cut
            to it.

    Raises:
        PyTritonBadParameterError: A field has a value that cannot work, or no source or more than one is set.
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
        self.datatype  # noqa: B018  (an unknown dtype is to be found here)
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
        name: What Triton's log calls it.
        batch_size: How many samples warm the model up together; 1 for a model without batching.
        inputs: What each input holds, by name. Inputs may be left out if the callable can do without them.
        count: How often the request is sent; 0 is once, as in Triton.

    Raises:
        PyTritonBadParameterError: A field has a value that cannot work.

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
        for name, data in self.inputs.items():
            if not isinstance(data, WarmupInput):
                raise PyTritonBadParameterError(f"ModelWarmup.inputs[{name!r}] is {data!r}; use a WarmupInput.")


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Checks that a setting is an integer within bounds, or a float that is one.

    Args:
        what: The setting's name, as it stands in the message.
        value: Its value.
        low: The least value that works.
        high: The greatest value that works.

    Raises:
        PyTritonBadParameterError: It is not.
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise PyTritonBadParameterError(f"{what} is {value!r}; use an integer from {low} to {high}.")
