"""Responses: those of this model, and those of models that it calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytriton.python_backend.errors import TritonError, TritonModelException
from pytriton.python_backend.tensor import Tensor
from pytriton.python_backend.texts import text_of


class InferenceResponse:
    """The response to a request: its outputs, or an error.

    Args:
        output_tensors: The outputs; ignored if there is an error.
        error: The reason why the request failed.
        parameters: Response parameters: strings, integers, booleans and floats by name.

    Raises:
        TritonModelException: An argument has the wrong type.

    Examples:
        >>> InferenceResponse(error=TritonError("no such word")).has_error()
        True
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] | None = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        tensors = list(output_tensors if type(output_tensors) is list else _sequence(output_tensors))
        for tensor in tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                raise TritonModelException(
                    f"an InferenceResponse has {type(tensor).__name__} among its output_tensors: use pb_utils.Tensor"
                )
        if error is not None and not isinstance(error, TritonError):
            raise TritonModelException(f"an InferenceResponse has the error {error!r}: use pb_utils.TritonError")
        if parameters:
            parameters = checked_parameters(parameters)
        self._tensors = tensors
        self._error = error
        self._parameters = parameters

    def output_tensors(self) -> list[Tensor]:
        """Returns the outputs."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Returns whether the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Returns the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Returns the response parameters as a JSON object."""
        return json.dumps(self._parameters or {})


def _sequence(output_tensors: Any) -> Sequence[Tensor]:
    if output_tensors is None:
        return ()
    if not isinstance(output_tensors, (list, tuple)):
        raise TritonModelException(
            f"an InferenceResponse has output_tensors of type {type(output_tensors).__name__}: use a list of "
            "pb_utils.Tensor"
        )
    return output_tensors


def checked_parameters(parameters: object) -> dict[str, Any]:
    """Returns the parameters of a request or a response; bytes become strings.

    Raises:
        TritonModelException: They are not a dictionary, or one of them has a type that cannot be sent.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"parameters are a dictionary, not {type(parameters).__name__}")
    return {text_of(key, "a parameter's name"): _checked(key, value) for key, value in parameters.items()}


def _checked(key: object, value: object) -> str | int | float:
    if isinstance(value, (bytes, bytearray)):
        return text_of(value, f"parameter {key!r}")
    if not isinstance(value, (str, int, float)):
        raise TritonModelException(
            f"parameter {key!r} is {value!r}: names are strings, and values strings, integers, booleans or floats"
        )
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise TritonModelException(f"parameter {key!r} is {value}, which does not fit 64 bits: send it as a string")
    return value
