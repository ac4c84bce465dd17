"""Replaces inference callables by several, or by processes of their own."""

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
        sources: Those that it was bound to.
        instances: How many share the load, if it was bound to one; None leaves that as it is.
        program: The program's module, if each callable gets a process of its own.
    """
    if instances is not None and len(sources) == 1:
        sources = sources * instances
    return sources if program is None else [_in_process(each, program) for each in sources]


def _in_process(source: InferenceSource, program: str) -> InferenceSource:
    if isinstance(source, FactoryInstance):
        return source
    # Its functions are sent as they are: imported in the process, the program might serve there, too.
    cloudpickle.register_pickle_by_value(sys.modules[program])
    return ProcessInstance(functools.partial(_itself, source))


def _itself(infer_func: Callable[..., Any]) -> Callable[..., Any]:
    return infer_func
