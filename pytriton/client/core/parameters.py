"""Parameters of inference requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.client.exceptions import PyTritonClientInputError

_INSTEAD = {"priority": "priority", "timeout": "timeout_s", "headers": "headers"}
"""Arguments of requests that do what was meant by a parameter."""
_RESERVED = frozenset(
    {*_INSTEAD, "sequence_id", "sequence_start", "sequence_end", "binary_data_output", "pytriton_callers"}
)
_RESERVED_PREFIX = "triton_"


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Checks that no parameter has a meaning of its own for Triton.

    Raises:
        PyTritonClientInputError: One has.
    """
    for name in parameters:
        if isinstance(name, str) and (name in _RESERVED or name.startswith(_RESERVED_PREFIX)):
            instead = f"; use the argument {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise PyTritonClientInputError(
                f'Parameter "{name}" is a reserved parameter and cannot be specified{instead}.'
            )
