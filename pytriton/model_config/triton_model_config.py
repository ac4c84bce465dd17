"""A model's configuration as a server reports it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonError
from pytriton.model_config.common import DeviceKind, DynamicBatcher, ModelWarmup, QueuePolicy, TimeoutAction
from pytriton.model_config.datatypes import BYTES_CODE, DATATYPES, Datatype, datatype_of

_DTYPE_BY_CONFIG_NAME: dict[str, Any] = {
    datatype.config_name: np.bytes_
    if datatype.code == BYTES_CODE
    else "bfloat16"
    if datatype.numpy is None
    else datatype.numpy.type
    for datatype in DATATYPES
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model that a server has.

    Attributes:
        name: Its name in requests and responses.
        shape: Size of each dimension without the batch dimension; -1 for a variable size.
        dtype: Type of its elements, as for `Tensor`: ``np.float32``, or ``np.bytes_`` for ``BYTES``.
        optional: A request may omit this input.
        media_type: What bytes contain, such as ``image/*``; empty if it is unknown.

    Raises:
        PyTritonBadParameterError: Triton has no such dtype.

    Examples:
        >>> print(TensorSpec.from_dict({"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}))
        'x': FP32 (-1, 3)
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | type[np.dtype[Any]] | type[object] | str
    optional: bool = False
    media_type: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_datatype", datatype_of(self.dtype))

    @property
    def datatype(self) -> Datatype:
        """Triton's datatype of the elements."""
        datatype: Datatype = self._datatype  # type: ignore[attr-defined]
        return datatype

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype of its arrays: ``object`` for ``BYTES``.

        Raises:
            PyTritonBadParameterError: It is ``BF16`` and ml_dtypes is not installed.
        """
        return self.datatype.numpy_dtype

    @property
    def is_binary(self) -> bool:
        """Whether its bytes are known not to be text."""
        return bool(self.media_type) and not self.media_type.startswith("text/")

    @classmethod
    def from_dict(cls, message: Mapping[str, Any], media_type: str = "") -> TensorSpec:
        """Reads a message ``ModelInput`` or ``ModelOutput``.

        Args:
            message: The message as a dictionary, with numbers as numbers or as text.
            media_type: What bytes contain, which is not part of the message.

        Raises:
            KeyError: A field is missing, or the datatype is unknown.
            ValueError: A dimension is not a number.
        """
        return cls(
            name=str(message["name"]),
            shape=tuple(int(dim) for dim in message["dims"]),
            dtype=_DTYPE_BY_CONFIG_NAME[message["data_type"]],
            optional=bool(message.get("optional", False)),
            media_type=media_type,
        )

    def __str__(self) -> str:
        optional = ", optional" if self.optional else ""
        return f"{self.name!r}: {self.datatype.name} {self.shape}{optional}"


@dataclasses.dataclass(frozen=True)
class ResponseCache:
    """Whether Triton serves repeated requests to a model from its cache.

    Attributes:
        enable: Whether it does.
    """

    enable: bool


@dataclasses.dataclass(frozen=True)
class TritonModelConfig:
    """The configuration of a model as a server reports it: its tensors, and how it is served.

    Attributes:
        model_name: The model's name.
        model_version: The requested version, or the latest in the configuration.
        max_batch_size: Maximum number of samples in a request; 0 for a model without batching.
        batching: Whether the first dimension of every input and output is the batch.
        batcher: How Triton combines requests into batches; None if it does not.
        instance_group: The number of instances by the kind of device.
        decoupled: It sends any number of responses to a request, through a stream.
        backend_parameters: The parameters for its backend, by name.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        response_cache: Whether Triton serves repeated requests from its cache; None if unknown.
        model_warmup: The model's warm-up; None for a configuration from a server, which describes it differently.
        backend: The backend that serves it, for example ``pytriton`` or ``onnxruntime``.

    Examples:
        >>> config = TritonModelConfig.from_dict({"name": "Double", "max_batch_size": 8, "input": [], "output": []})
        >>> config.batching, config.decoupled
        (True, False)
    """

    model_name: str
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = None
    instance_group: Mapping[DeviceKind, int | None] = dataclasses.field(default_factory=dict)
    decoupled: bool = False
    backend_parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    response_cache: ResponseCache | None = None
    model_warmup: Sequence[ModelWarmup] | None = None
    backend: str = ""

    @classmethod
    def from_dict(cls, message: Mapping[str, Any], model_version: str | None = None) -> TritonModelConfig:
        """Reads a message ``ModelConfig``, as the server sends it.

        Args:
            message: The message as a dictionary. Fields with their default value may be missing, as in messages from
                protobuf.
            model_version: The requested version.

        Raises:
            KeyError: A field without a default is missing, or a datatype is unknown.
            ValueError: A number is malformed.
        """
        max_batch_size = int(message.get("max_batch_size", 0))
        cache, batcher = message.get("response_cache"), message.get("dynamic_batching")
        return cls(
            model_name=str(message["name"]),
            model_version=_version(message) if model_version is None else int(model_version),
            max_batch_size=max_batch_size,
            batching=max_batch_size > 0,
            batcher=None if batcher is None else _batcher(batcher),
            instance_group=_instances(message.get("instance_group", ())),
            decoupled=bool(message.get("model_transaction_policy", {}).get("decoupled", False)),
            backend_parameters={
                name: str(value.get("string_value", "")) for name, value in message.get("parameters", {}).items()
            },
            inputs=_tensors(message, "input"),
            outputs=_tensors(message, "output"),
            response_cache=ResponseCache(bool(cache.get("enable", False))) if cache else None,
            backend=str(message.get("backend", "")) or str(message.get("platform", "")),
        )


def media_type_parameter(kind: str, name: str) -> str:
    """Returns the name of the parameter with the media type of an ``input`` or ``output``."""
    return f"media_type.{kind}.{name}"


def _tensors(message: Mapping[str, Any], kind: str) -> tuple[TensorSpec, ...]:
    parameters = message.get("parameters", {})
    return tuple(
        TensorSpec.from_dict(
            each, str(parameters.get(media_type_parameter(kind, each["name"]), {}).get("string_value", ""))
        )
        for each in message.get(kind, ())
    )


def _version(message: Mapping[str, Any]) -> int:
    """Returns the latest version that the configuration names; 1 if it names none."""
    versions = message.get("version_policy", {}).get("specific", {}).get("versions", ())
    return max(map(int, versions), default=1)


def _batcher(message: Mapping[str, Any]) -> DynamicBatcher | None:
    default = message.get("default_queue_policy")
    policies = message.get("priority_queue_policy", {})
    try:
        return DynamicBatcher(
            max_queue_delay_microseconds=int(message.get("max_queue_delay_microseconds", 0)),
            preferred_batch_size=list(map(int, message.get("preferred_batch_size", ()))) or None,
            preserve_ordering=bool(message.get("preserve_ordering", False)),
            priority_levels=int(message.get("priority_levels", 0)),
            default_priority_level=int(message.get("default_priority_level", 0)),
            default_queue_policy=_policy(default) if default else None,
            priority_queue_policy={int(level): _policy(policy) for level, policy in policies.items()} or None,
        )
    except PyTritonError:  # a newer server may allow values that this package does not
        return None


def _policy(message: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(message.get("timeout_action", TimeoutAction.REJECT.value)),
        default_timeout_microseconds=int(message.get("default_timeout_microseconds", 0)),
        allow_timeout_override=bool(message.get("allow_timeout_override", False)),
        max_queue_size=int(message.get("max_queue_size", 0)),
    )


def _instances(groups: Sequence[Mapping[str, Any]]) -> dict[DeviceKind, int | None]:
    kinds = {kind.value: kind for kind in DeviceKind}
    counts: dict[DeviceKind, int | None] = {}
    for group in groups:
        kind = kinds.get(str(group.get("kind", DeviceKind.KIND_AUTO.value)))
        if kind is not None:  # other kinds are specific to backends
            counts[kind] = (counts.get(kind) or 0) + int(group.get("count", 1))
    return counts
