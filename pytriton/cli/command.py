"""The arguments of a subcommand: their parser, and their text."""

from __future__ import annotations

import argparse
from typing import Any

_HIGHEST_PORT = 65535


class CommandParser(argparse.ArgumentParser):
    """A parser that allows options between words, and reports unknown arguments with the usage of its own command."""

    _list: str | None = None

    def add_list(self, name: str, **settings: Any) -> None:
        """Adds the list of the command's words, between which options may stand.

        Args:
            name: The words' attribute in the parsed options.
            settings: Settings of `argparse.ArgumentParser.add_argument`.
        """
        self._list = name
        self.add_argument(name, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments after the command; the parser of ``pytriton`` calls this.

        Args:
            args: The words after the command.
            namespace: Where to store what they set.

        Returns:
            The parsed options, and an empty list: unknown arguments are reported here, with the command's usage.
        """
        options, rest = super().parse_known_args(args, namespace)  # it ends the list at the first option after it
        unknown = rest if self._list is None else [word for word in rest if word.startswith("-")]
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        if self._list is not None:
            getattr(options, self._list).extend(rest)
        return options, []


def port_number(word: str) -> int:
    """Converts a word of the command line to the number of a port.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not (word.isascii() and word.isdigit() and int(word) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{word!r} is no port; give a number from 0 to {_HIGHEST_PORT}")
    return int(word)


def as_utf_8(word: str) -> str:
    """Decodes a word of the command line as UTF-8; the bytes that the locale cannot decode are surrogates in it."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
