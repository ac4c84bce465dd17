"""The specification of a worker process."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import ProcessInstance
from pytriton.process.payload import FactorySpec, payload_of


@dataclasses.dataclass(frozen=True)
class ProcessSpec(FactorySpec):
    """Specification of an instance's process, captured in `Triton.bind`: all that starting and restarting it needs.

    Attributes:
        import_path: The process's ``sys.path``.
        environment: The process's environment variables.
        folder: Its working directory.
    """

    import_path: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    @classmethod
    def of(cls, instance: ProcessInstance, spec: ModelSpec, number: int) -> ProcessSpec:
        """Creates the specification of an instance.

        Raises:
            PyTritonBadParameterError: The factory or one of its arguments cannot be sent to another process.
        """
        payload = payload_of(instance, spec, number, "process")
        environment = {**os.environ, **instance.env}
        try:
            folder = Path.cwd()
        except FileNotFoundError:
            folder = Path("/")
        return cls(spec, number, payload, tuple(sys.path), environment, folder)
