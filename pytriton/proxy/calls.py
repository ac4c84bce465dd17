"""The layout of what workers ask of the server, and of what it replies. Twin of ``backend/calls.h``.

Bells and messages have the shape that ``protocol`` gives them; ``docs/wire.md`` tells the layout word by word.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

from pytriton.proxy.types import Array

Value = Union[str, int, bool, float]


class ErrorCode(enum.IntEnum):
    """``TRITONSERVER_Error_Code``."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class LogLevel(enum.IntEnum):
    """``TRITONSERVER_LogLevel``."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class MetricKind(enum.IntEnum):
    """``TRITONSERVER_MetricKind``."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


SEQUENCE_START = 1
"""A request's flag: it begins a sequence."""

SEQUENCE_END = 2
"""A request's flag: it ends a sequence."""


class CallTensor(NamedTuple):
    """A tensor as it lies in memory.

    Attributes:
        datatype: A code of ``TRITONSERVER_DataType``.
        shape: The dimensions.
        data: The bytes, as an array of uint8; of a reply's it is a view of shared memory, which stays valid as long as
            it is held. BYTES are the lengths of all elements (uint32), then the elements back to back.
    """

    datatype: int
    shape: tuple[int, ...]
    data: Array

    def array(self) -> Array:
        """As an array that looks at the bytes, of objects for BYTES.

        Raises:
            PyTritonBadParameterError: It is BF16, and ml_dtypes is not installed.
        """
        raise NotImplementedError


@dataclass
class Call:
    """A request to a model of the server.

    Attributes:
        model: Its name.
        inputs: By name. Arrays of any dtype that Triton has, of bytes or of str, C-contiguous or not; or tensors with
            their datatype, for those that NumPy lacks.
        version: The model's version; -1 leaves it to Triton.
        outputs: Names of the outputs that are wanted; None is all.
        request_id: Given back in the reply.
        correlation_id: Of the sequence that it belongs to: a number, or text; 0 is none.
        flags: ``SEQUENCE_START`` and ``SEQUENCE_END``, added up.
        priority: 0 is the model's default, 1 the highest.
        timeout_us: The request's timeout in microseconds; 0 is none.
        parameters: What is sent besides tensors.
    """

    model: str
    inputs: dict[str, Array | CallTensor]
    version: int = -1
    outputs: list[str] | None = None
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    parameters: dict[str, Value] = field(default_factory=dict)


@dataclass
class Reply:
    """A response to a call.

    Attributes:
        tensors: The outputs by name; none where there is an error.
        final: Whether it is the last one.
        model: Who answered.
        version: Its version.
        request_id: As it was in the call.
        parameters: What the model sent besides tensors.
        error: Why the request failed, or None.
    """

    tensors: dict[str, CallTensor]
    final: bool
    model: str = ""
    version: int = -1
    request_id: str = ""
    parameters: dict[str, Value] = field(default_factory=dict)
    error: Any | None = None  # PyTritonInferenceError

    @property
    def outputs(self) -> dict[str, Array]:
        """The outputs by name, as arrays that look into shared memory (`CallTensor.array`)."""
        return {name: tensor.array() for name, tensor in self.tensors.items()}

    def check(self) -> Reply:
        """Itself.

        Raises:
            PyTritonInferenceError: It has an error.
        """
        raise NotImplementedError
