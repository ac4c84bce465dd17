"""Parameters of inference requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.client.exceptions import PyTritonClientInputError

_INSTEAD = {"priority": "priority", "timeout": "timeout_s", "headers": "headers"}
"""Arguments of requests that have the effect of a reserved parameter."""
_RESERVED = frozenset(
    {*_INSTEAD, "sequence_id", "sequence_start", "sequence_end", "binary_data_output", "pytriton_callers"}
)
_RESERVED_PREFIX = "triton_"


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Checks that no parameter is reserved by Triton.

    Raises:
        PyTritonClientInputError: One is reserved.
    """
    for name in parameters:
        if isinstance(name, str) and (name in _RESERVED or name.startswith(_RESERVED_PREFIX)):
            instead = f"; use the argument {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise PyTritonClientInputError(
                f'Parameter "{name}" is a reserved parameter and cannot be specified{instead}.'
            )
