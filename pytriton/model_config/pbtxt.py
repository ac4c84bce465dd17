"""The text of a model's ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.triton_config import EnumValue, Message, MessageMap, triton_model_config


def model_config_pbtxt(
    spec: ModelSpec,
    parameters: Mapping[str, str] | None = None,
    versions: Sequence[int] = (),
    *,
    builds_batches: bool = False,
) -> str:
    """Writes the model configuration that Triton reads, in protobuf's text format.

    Args:
        spec: The model.
        parameters: Additional parameters for the backend.
        versions: The versions to serve; empty for Triton's default, the latest.
        builds_batches: Whether the backend can build the batches, see `triton_model_config`.

    Returns:
        The text of ``config.pbtxt``.
    """
    return _message(triton_model_config(spec, parameters or {}, versions, builds_batches=builds_batches))


def _message(message: Message, indent: str = "") -> str:
    return "".join(_field(name, value, indent) for name, value in message.items())


def _field(name: str, value: Any, indent: str) -> str:
    if isinstance(value, MessageMap):
        return "".join(_field(name, {"key": key, "value": each}, indent) for key, each in value.items())
    if isinstance(value, dict):
        return f"{indent}{name} {{\n{_message(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "".join(_field(name, each, indent) for each in value)
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, EnumValue):
        return _quoted(value)
    return str(value)


def _quoted(text: str) -> str:
    """Quotes a string, with octal escapes for everything but printable ASCII."""
    characters = []
    for byte in text.encode():
        if byte in b'"\\':
            characters.append(f"\\{chr(byte)}")
        else:
            characters.append(chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    return f'"{"".join(characters)}"'
