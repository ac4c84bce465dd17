"""Flags for the fields of a class of settings."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Container, Mapping
from typing import Any

_ATTRIBUTE = re.compile(r"^ +(?P<name>\w+): (?P<text>.+(?:\n {8,}.+)*)$", re.MULTILINE)
_SPACES = re.compile(r"\s+")
# A setting as errors name it: TritonConfig.http_port, or TritonConfig(http_port=...) with a value to try.
_SETTING = re.compile(r"(?P<kind>\w+Config)(?:\.(?P<name>\w+)|\((?P<argument>\w+)=(?P<value>[^(),]*)\))")


def add_settings(parser: argparse._ArgumentGroup, settings: Any, skipped: Container[str]) -> None:
    """Adds a flag for each field, with its description from the docstring.

    Args:
        parser: A group of flags.
        settings: The class, a dataclass.
        skipped: Names of fields without a flag.
    """
    docstring = inspect.getdoc(settings) or ""
    texts = {match["name"]: _SPACES.sub(" ", match["text"]) for match in _ATTRIBUTE.finditer(docstring)}
    for field in dataclasses.fields(settings):
        if field.name in skipped:
            continue
        flag = flag_of(field.name)
        text = texts.get(field.name, "").replace("`", "").replace("%", "%%")
        if field.default not in (None, (), dataclasses.MISSING):
            text += f" Default: {str(field.default).lower() if isinstance(field.default, bool) else field.default}."
        kind = str(field.type)
        if kind.startswith(("list[", "tuple[")):
            parser.add_argument(flag, action="append", metavar="VALUE", help=f"{text} May be repeated.")
        elif "bool" in kind:
            parser.add_argument(flag, nargs="?", const="true", metavar="true|false", help=text)
        else:
            parser.add_argument(flag, metavar="VALUE", help=text)


def flag_of(name: str) -> str:
    """Returns the flag for a field."""
    return f"--{name.replace('_', '-')}"


def flags_of(settings: Any) -> dict[str, str]:
    """Returns the flag for each field of a class of settings, by the name that errors use."""
    return {f"{settings.__name__}.{field.name}": flag_of(field.name) for field in dataclasses.fields(settings)}


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """Returns an error's message with the flags of a command in place of the settings.

    Args:
        message: The message.
        flags: The command's flags, by setting; see `flags_of`.

    Examples:
        >>> in_flags("choose another port with TritonConfig(http_port=...).", {"TritonConfig.http_port": "--port"})
        'choose another port with --port.'
    """

    def flag(found: re.Match[str]) -> str:
        name = flags.get(f"{found['kind']}.{found['name'] or found['argument']}")
        if name is None:
            return found[0]
        value = (found["value"] or "...").strip("'\"")
        return name if value == "..." else f"{name} {value}"

    return _SETTING.sub(flag, message)
