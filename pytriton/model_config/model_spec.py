"""Specification of one bound model."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytriton.exceptions import PyTritonBadParameterError, PyTritonBindError, PyTritonModelConfigError
from pytriton.model_config.arguments import check_instance
from pytriton.model_config.common import MAX_INT32, DynamicBatcher, ModelWarmup, check_integer, check_switch
from pytriton.model_config.conversion import converted
from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.warmup import read_samples

_MAX_NAME_BYTES = 255
# Characters that a folder's name may contain and that a URL carries unescaped.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """The specification of a bound model: checked, and with a name for each tensor.

    Args:
        name: Name in URLs and in the model repository.
        version: A number from 1.
        inputs: Inputs, in order. One without a name is called ``INPUT_<position>``, positions from 1.
        outputs: Outputs, in order. One without a name is called ``OUTPUT_<position>``.
        config: How it is served; copied, so that later changes to it do not affect the model.
        instances: Number of inference callables that share the load.
        strict: Outputs are checked against `outputs`.

    Raises:
        PyTritonBadParameterError: A field has an invalid value.
        PyTritonModelConfigError: Two fields contradict each other.

    Examples:
        >>> spec = ModelSpec.create("Double", [Tensor((-1,), "float32")], [Tensor((-1,), "float32")])
        >>> spec.inputs[0].name
        'INPUT_1'
    """

    name: str
    version: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    config: ModelConfig
    instances: int
    strict: bool = False

    @classmethod
    def create(
        cls,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        version: int = 1,
        config: ModelConfig | None = None,
        instances: int = 1,
        strict: bool = False,
    ) -> ModelSpec:
        """Creates a specification from the arguments of `Triton.bind`, with defaults.

        Args:
            name: Name in URLs and in the model repository.
            inputs: Inputs, in order.
            outputs: Outputs, in order.
            version: A number from 1.
            config: How it is served; `ModelConfig()` by default.
            instances: Number of inference callables that share the load.
            strict: Outputs are checked against `outputs`.

        Returns:
            The specification.

        Raises:
            PyTritonBadParameterError: An argument has an invalid value.
            PyTritonModelConfigError: Two arguments contradict each other.
        """
        return cls(
            name=name,
            version=version,
            inputs=_listed(inputs, "inputs", name),
            outputs=_listed(outputs, "outputs", name),
            config=ModelConfig() if config is None else converted(config),
            instances=instances,
            strict=strict,
        )

    def __post_init__(self) -> None:
        """Checks the fields, and names the tensors."""
        check_model_name(self.name)
        where = f"Model {self.name!r}"
        if isinstance(self.version, str) and self.version.isdecimal():
            object.__setattr__(self, "version", int(self.version))
        check_integer(f"{where}: model_version", self.version, 1, MAX_INT32)
        check_integer(f"{where}: the number of instances", self.instances, 1, MAX_INT32)
        check_instance(f"{where}: config", self.config, ModelConfig)
        check_switch(f"{where}: strict", self.strict)
        object.__setattr__(self, "config", copy.deepcopy(self.config))
        try:
            self.config.check()
        except (PyTritonBadParameterError, PyTritonModelConfigError) as error:
            raise type(error)(f"{where}: {error.message}") from error
        object.__setattr__(self, "inputs", _named(self.inputs, "input", where))
        object.__setattr__(self, "outputs", _named(self.outputs, "output", where))
        warmups = self.config.model_warmup or ()
        max_samples = max((warmup.batch_size for warmup in warmups), default=1)
        for warmup in warmups:
            self._check_warmup(warmup, max_samples, f"{where}: warm-up {warmup.name!r}")

    @property
    def model_name(self) -> str:
        """Alias of `name`."""
        return self.name

    @property
    def model_version(self) -> int:
        """Alias of `version`."""
        return self.version

    @property
    def batching(self) -> bool:
        """`ModelConfig.batching`."""
        return self.config.batching

    @property
    def max_batch_size(self) -> int:
        """`ModelConfig.max_batch_size`."""
        return self.config.max_batch_size

    @property
    def batcher(self) -> DynamicBatcher | None:
        """`ModelConfig.batcher`."""
        return self.config.batcher

    @property
    def decoupled(self) -> bool:
        """`ModelConfig.decoupled`."""
        return self.config.decoupled

    @property
    def response_cache(self) -> bool:
        """`ModelConfig.response_cache`."""
        return self.config.response_cache

    def _check_warmup(self, warmup: ModelWarmup, max_samples: int, where: str) -> None:
        tensors = {str(tensor.name): tensor for tensor in self.inputs}
        for name in warmup.inputs:
            if name not in tensors:
                raise PyTritonModelConfigError(
                    f"{where} has the input {name!r}, which the model lacks; drop it, or use one of its inputs, "
                    f"{', '.join(map(repr, tensors)) or 'of which it has none'}."
                )
        for name, tensor in tensors.items():
            data = warmup.inputs.get(name)
            if data is None:
                continue
            if data.datatype != tensor.datatype:
                raise PyTritonModelConfigError(
                    f"{where} gives the input {name!r} as {data.datatype.name}; it is {tensor.datatype.name}."
                )
            shape = tuple(data.shape)
            fits = len(shape) == len(tensor.shape) and all(
                wanted in (-1, given) for wanted, given in zip(tensor.shape, shape)
            )
            if not fits:
                raise PyTritonModelConfigError(
                    f"{where} gives the input {name!r} the shape {shape}, which does not fit {tensor.shape}; "
                    "leave the batch dimension out and fill in each -1."
                )
            if data.input_data_file and data.samples is None:
                data.samples = read_samples(data, max_samples, f"{where}: input {name!r}")


def check_model_name(name: object) -> None:
    """Checks that a model can have a name.

    Raises:
        PyTritonBindError: It cannot.
    """
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name) or len(name) > _MAX_NAME_BYTES:
        shown = name if not isinstance(name, str) or len(name) <= _MAX_NAME_BYTES else f"{name[:40]}…"
        raise PyTritonBindError(
            f"Model name {shown!r} cannot be the name of a folder and a part of a URL; "
            f"use 1 to {_MAX_NAME_BYTES} letters, digits, '_', '-', '~' and '.', not starting with '.'."
        )


def _listed(tensors: Sequence[Tensor], what: str, name: str) -> tuple[Tensor, ...]:
    if not isinstance(tensors, Iterable) or isinstance(tensors, (str, bytes, Mapping)):
        given = "a Tensor" if isinstance(tensors, Tensor) else f"{tensors!r:.200}"
        raise PyTritonBadParameterError(f"Model {name!r}: {what} is {given}, not a list; write {what}=[Tensor(...)].")
    return tuple(map(converted, tensors))


def _named(tensors: Sequence[Tensor], kind: str, where: str) -> tuple[Tensor, ...]:
    named = tuple(_each_named(tensors, kind, where))
    first_at: dict[str | None, int] = {}
    for position, tensor in enumerate(named, start=1):
        if tensor.name in first_at:
            raise PyTritonBadParameterError(
                f"{where} has two {kind}s named {tensor.name!r}, number {first_at[tensor.name]} and number {position}; "
                "give each a name of its own."
            )
        first_at[tensor.name] = position
    return named


def _each_named(tensors: Sequence[Tensor], kind: str, where: str) -> Iterator[Tensor]:
    for position, tensor in enumerate(tensors, start=1):
        if not isinstance(tensor, Tensor):
            raise PyTritonBadParameterError(
                f"{where}: {kind} number {position} is {tensor!r:.200}; use a pytriton.model_config.Tensor, as in "
                f"{kind}s=[Tensor(name=..., dtype=..., shape=...)]."
            )
        # For BF16, this fails if ml_dtypes is not installed.
        DTYPE_BY_CODE[tensor.datatype.code]
        yield tensor if tensor.name else dataclasses.replace(tensor, name=f"{kind.upper()}_{position}")
