"""Responses to inference requests over HTTP: JSON, followed by binary content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.client.core.tensors import Content, array_of, dtype_of


def json_of(content: Content) -> Any:
    """Decodes JSON.

    Args:
        content: The text.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(content if isinstance(content, bytes) else bytes(content))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


class InferResult:
    """The response to an inference request.

    Args:
        body: The response's body; arrays of large outputs are views of it.
        header_size: The length of its JSON; None if there is no binary content.

    Attributes:
        outputs: Name, datatype and shape of each output.

    Raises:
        ValueError: It is not JSON.
        KeyError, TypeError: It does not come from Triton.
    """

    __slots__ = ("_body", "_places", "outputs")

    def __init__(self, body: Content, header_size: int | None) -> None:
        """Reads the JSON, and finds the outputs."""
        head = body if header_size is None else body[:header_size]
        message = json_of(head)
        self._body = body
        self._places: list[tuple[dict[str, Any], int]] = []
        self.outputs: list[tuple[str, str, Sequence[int]]] = []
        start = header_size or len(body)
        for output in message.get("outputs") or []:
            self._places.append((output, start))
            self.outputs.append((output["name"], output["datatype"], output["shape"]))
            start += (output.get("parameters") or {}).get("binary_data_size", 0)

    def array(self, index: int) -> Array:
        """Returns the array of an output, which is read-only if its content is binary.

        Raises:
            ValueError: The content does not fit shape and datatype.
        """
        output, start = self._places[index]
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            return np.array(output["data"], dtype_of(output["datatype"])).reshape(output["shape"])
        return array_of(self._body[start : start + size], output["datatype"], output["shape"])
