"""A model's configuration as a server reports it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton.model_config.datatypes import DATATYPES, Datatype

_BY_CONFIG_NAME = {datatype.config_name: datatype for datatype in DATATYPES}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model that a server has.

    Attributes:
        name: Its name in requests and responses.
        shape: Size of each dimension without the batch dimension; -1 where it varies.
        datatype: Its type, one of Triton's.
        optional: A request may leave this input out.
        media_type: What bytes contain, such as ``image/*``; empty if it is unknown.

    Examples:
        >>> print(TensorSpec.from_dict({"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}))
        'x': FP32 (-1, 3)
    """

    name: str
    shape: tuple[int, ...]
    datatype: Datatype
    optional: bool = False
    media_type: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of an array of it: ``object`` for ``BYTES``.

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
            media_type: What bytes contain, which the message does not say.

        Raises:
            KeyError: A field is missing, or the datatype is unknown.
            ValueError: A dimension is no number.
        """
        return cls(
            name=str(message["name"]),
            shape=tuple(int(dim) for dim in message["dims"]),
            datatype=_BY_CONFIG_NAME[message["data_type"]],
            optional=bool(message.get("optional", False)),
            media_type=media_type,
        )

    def __str__(self) -> str:
        optional = ", optional" if self.optional else ""
        return f"{self.name!r}: {self.datatype.name} {self.shape}{optional}"


@dataclasses.dataclass(frozen=True)
class TritonModelConfig:
    """The configuration of a model as a server reports it: its tensors, and how it is served.

    Attributes:
        model_name: The model's name.
        model_version: The version that was asked for; None is the latest.
        max_batch_size: Samples that a request may have; 0 for a model without batching.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        decoupled: It sends any number of responses to a request, through a stream.
        backend: The backend that serves it, for example ``pytriton`` or ``onnxruntime``.
        response_cache: Triton serves repeated requests from its cache.

    Examples:
        >>> config = TritonModelConfig.from_dict({"name": "Double", "max_batch_size": 8, "input": [], "output": []})
        >>> config.batching, config.decoupled
        (True, False)
    """

    model_name: str
    model_version: str | None = None
    max_batch_size: int = 0
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    decoupled: bool = False
    backend: str = ""
    response_cache: bool = False

    @property
    def batching(self) -> bool:
        """Whether the first dimension of every input and output is the batch."""
        return self.max_batch_size > 0

    @classmethod
    def from_dict(cls, message: Mapping[str, Any], model_version: str | None = None) -> TritonModelConfig:
        """Reads a message ``ModelConfig``, as the server sends it.

        Args:
            message: The message as a dictionary. Fields that have their default may be missing, as they are where
                the message came as protobuf.
            model_version: The version that was asked for.

        Raises:
            KeyError: A field without a default is missing, or a datatype is unknown.
            ValueError: A number is no number.
        """
        return cls(
            model_name=str(message["name"]),
            model_version=model_version,
            max_batch_size=int(message.get("max_batch_size", 0)),
            inputs=_tensors(message, "input"),
            outputs=_tensors(message, "output"),
            decoupled=bool(message.get("model_transaction_policy", {}).get("decoupled", False)),
            backend=str(message.get("backend", "")) or str(message.get("platform", "")),
            response_cache=bool(message.get("response_cache", {}).get("enable", False)),
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
