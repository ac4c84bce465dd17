"""The specification of a worker process."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.instance import ProcessInstance
from pytriton.process.payload import FactorySpec, payload_of
from pytriton.utils.interpreter import own_interpreter
from pytriton.utils.working_folder import working_folder


@dataclasses.dataclass(frozen=True)
class ProcessSpec(FactorySpec):
    """Specification of an instance's process, captured in `Triton.bind`: all that starting and restarting it needs.

    Attributes:
        interpreter: The command that runs Python, with its options.
        import_path: The process's ``sys.path``.
        environment: The process's environment variables.
        folder: Its working directory, if that is still there.
    """

    interpreter: tuple[str, ...]
    import_path: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    @classmethod
    def of(cls, instance: ProcessInstance, spec: ModelSpec, number: int) -> ProcessSpec:
        """Creates the specification of an instance.

        Raises:
            PyTritonBadParameterError: The factory or one of its arguments cannot be sent to another process, or this
                program has no interpreter that could run it.
        """
        payload = payload_of(instance, spec, number, "process")
        environment = {**os.environ, **instance.env}
        return cls(spec, number, payload, _interpreter(spec.name), tuple(sys.path), environment, working_folder())


def _interpreter(model: str) -> tuple[str, ...]:
    interpreter = own_interpreter()
    if interpreter is None:
        raise PyTritonBadParameterError(
            f"Model {model!r}: ProcessInstance needs a Python interpreter, and this program has none "
            f"(sys.executable is {sys.executable!r}): it is a frozen executable, or embeds Python. Bind functions, or "
            "run the program with Python."
        )
    # Options such as -O and -W, as for the processes of multiprocessing.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return interpreter, *options
