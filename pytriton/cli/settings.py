"""Flags for the fields of a class of settings."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Container
from typing import Any

_ATTRIBUTE = re.compile(r"^ +(?P<name>\w+): (?P<text>.+(?:\n {8,}.+)*)$", re.MULTILINE)
_SPACES = re.compile(r"\s+")


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
        flag = f"--{field.name.replace('_', '-')}"
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
