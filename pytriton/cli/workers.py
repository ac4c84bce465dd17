"""Replaces inference callables with several instances, or with processes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from pytriton.models.definition import InferenceSource
from pytriton.process.instance import FactoryInstance, ProcessInstance


def replaced(sources: list[InferenceSource], instances: int | None, program: str | None) -> list[InferenceSource]:
    """Returns the inference callables with which a model is served.

    Args:
        sources: The callables that it was bound to.
        instances: Number of instances, if it was bound to a single callable; None for no change.
        program: The program's module, if each callable gets a process of its own.
    """
    if instances is not None and len(sources) == 1:
        sources = sources * instances
    return sources if program is None else [_in_process(each, program) for each in sources]


def _in_process(source: InferenceSource, program: str) -> InferenceSource:
    if isinstance(source, FactoryInstance):
        return source
    # Its functions are pickled by value: importing the program in the process might serve there, too.
    cloudpickle.register_pickle_by_value(sys.modules[program])
    return ProcessInstance(functools.partial(_itself, source))


def _itself(infer_func: Callable[..., Any]) -> Callable[..., Any]:
    return infer_func
