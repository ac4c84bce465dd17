"""The main function of a worker process that serves an instance of a bound model."""

from __future__ import annotations

from pathlib import Path

from pytriton.process.payload import created
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.wire.control import CommandMessage
from pytriton.proxy.worker.loaded_model import LoadedModel, reference_to
from pytriton.proxy.worker.process_main import run_worker


def main(control_fd: int) -> None:
    """Runs the worker process.

    Args:
        control_fd: The file descriptor of its control channel.
    """
    run_worker(load, control_fd=control_fd)


def load(command: CommandMessage) -> LoadedModel:
    """Creates the inference callable of a bound model, in its process.

    Args:
        command: A LOAD command with the payload of a `ProcessSpec`.
    """
    spec, infer_func = created(command.payload, Path(command.folder))
    close = getattr(infer_func, "close", None)
    finalize = close if callable(close) else _nothing
    return LoadedModel(infer_func, Signature(spec), finalize, model=reference_to(infer_func))


def _nothing() -> None:
    pass
