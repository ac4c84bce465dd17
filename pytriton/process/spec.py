"""What the process of a model instance is started from."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import ProcessInstance
from pytriton.process.pickling import pickled


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
    """All that it takes to start the process of an instance, and to start it again, as things were in `Triton.bind`.

    Attributes:
        spec: The model.
        number: Which of the model's instances it is, from 0.
        payload: The spec, the factory and its arguments, pickled.
        import_path: Where modules are imported from.
        environment: The process's environment variables.
        folder: Its working directory.
    """

    spec: ModelSpec
    number: int
    payload: bytes
    import_path: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    @classmethod
    def of(cls, instance: ProcessInstance, spec: ModelSpec, number: int) -> ProcessSpec:
        """Makes the plan of an instance.

        Raises:
            PyTritonBadParameterError: The factory or one of its arguments cannot be sent to another process.
        """
        try:
            payload = pickled((spec, instance.factory, tuple(instance.args), dict(instance.kwargs)))
        except Exception as error:
            raise PyTritonBadParameterError(
                f"Model {spec.name!r}: instance {number} cannot be sent to a process of its own: "
                f"{type(error).__name__}: {error}; leave that out of the factory, its arguments and the variables that "
                "it uses, and make it when the factory is called."
            ) from error
        environment = {**os.environ, **instance.env}
        return cls(spec, number, payload, tuple(sys.path), environment, Path.cwd())

    @property
    def name(self) -> str:
        """For messages."""
        return f"model {self.spec.name!r} (instance {self.number})"
