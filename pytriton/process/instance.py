"""Declarations of model instances whose inference callable a factory creates in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.decorators.ordering import next_stage
from pytriton.exceptions import PyTritonBadParameterError


@dataclasses.dataclass(frozen=True)
class FactoryInstance:
    """An instance of a model whose inference callable a factory creates in another process.

    Args:
        factory: Returns the inference callable.
        args: Positional arguments of the factory.
        kwargs: Keyword arguments of the factory.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.
    """

    factory: Callable[..., Callable[..., Any]]
    args: Sequence[Any] = dataclasses.field(default=(), kw_only=True)
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the arguments; `Triton.bind` checks that they can be pickled."""
        name = type(self).__name__
        if not callable(self.factory):
            raise PyTritonBadParameterError(
                f"{name}: factory is {self.factory!r}, which is not callable; pass a function or a class that creates "
                "the inference callable."
            )
        if next_stage(self.factory) is not None:
            raise PyTritonBadParameterError(
                f"{name}: factory is {self.factory!r}, an inference callable itself; pass a function that creates one, "
                "or `lambda: infer` for an existing one."
            )
        if not isinstance(self.args, list | tuple):
            raise PyTritonBadParameterError(f"{name}: args is {self.args!r}; use a tuple or a list.")
        if not isinstance(self.kwargs, Mapping):
            raise PyTritonBadParameterError(f"{name}: kwargs is {self.kwargs!r}; use a dictionary.")


@dataclasses.dataclass(frozen=True)
class ProcessInstance(FactoryInstance):
    """An instance of a model in a process of its own, passed to `Triton.bind` in place of an inference callable.

    The factory is called once in the new process and creates the inference callable there. The process is started when
    the model is loaded, restarted if it exits unexpectedly, and stopped with the model. Functions and classes of a
    script or a notebook, closures and lambdas can be sent to the process; modules are imported again.

    Args:
        factory: Returns the inference callable: a function of any kind, or an object with ``__call__``. If the object
            has a method ``close``, it is called at the end.
        args: Positional arguments of the factory.
        kwargs: Keyword arguments of the factory.
        env: Environment variables of the process, in addition to those of this one.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.

    Examples:
        >>> def make(device):
        ...     @batch
        ...     def infer(x):
        ...         return {"y": x * 2, "device": np.full((len(x), 1), device.encode())}
        ...     return infer
        >>> two_gpus = [ProcessInstance(make, args=["cuda"], env={"CUDA_VISIBLE_DEVICES": str(n)}) for n in range(2)]
        >>> triton.bind("Model", two_gpus, inputs=[...], outputs=[...])  # doctest: +SKIP
    """

    env: Mapping[str, str] = dataclasses.field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the arguments; `Triton.bind` checks that they can be pickled."""
        super().__post_init__()
        if not isinstance(self.env, Mapping):
            raise PyTritonBadParameterError(f"ProcessInstance: env is {self.env!r}; use a dictionary of strings.")
        for name, value in self.env.items():
            for text, forbidden in ((name, "=\0"), (value, "\0")):
                if not isinstance(text, str) or any(each in text for each in forbidden) or not name:
                    raise PyTritonBadParameterError(
                        f"ProcessInstance: env has {name!r}: {value!r}, which is not a valid environment variable; use "
                        "strings."
                    )
