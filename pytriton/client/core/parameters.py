"""Parameters of inference requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.client.exceptions import PyTritonClientValueError

_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
_RESERVED_PREFIX = "triton_"


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Checks that no parameter has a meaning of its own for Triton.

    Raises:
        PyTritonClientValueError: One has.
    """
    for name in parameters:
        if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
            raise PyTritonClientValueError(f'Parameter "{name}" is a reserved parameter and cannot be specified.')
