"""The parser of a subcommand: options between words, and arguments that it refuses."""

from __future__ import annotations

import argparse

import pytest

from pytriton.cli.command import CommandParser


@pytest.fixture
def parser():
    """The parser of a program with two commands."""
    program = argparse.ArgumentParser(prog="program")
    commands = program.add_subparsers(parser_class=CommandParser)
    several = commands.add_parser("several")
    several.add_list("words", nargs="+")
    single = commands.add_parser("single")
    single.add_argument("word")
    for command in (several, single):
        command.add_argument("--flag", action="store_true")
        command.add_argument("--value")
    return program


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "b=1", "c=-2", "--flag", "--value", "v"],
        ["--flag", "--value=v", "a", "b=1", "c=-2"],
        ["a", "--flag", "b=1", "--value", "v", "c=-2"],
        ["--value", "v", "a", "--flag", "b=1", "c=-2"],
    ],
    ids=" ".join,
)
def test_options_may_stand_between_words(parser, arguments):
    options = parser.parse_args(["several", *arguments])

    assert (options.words, options.flag, options.value) == (["a", "b=1", "c=-2"], True, "v")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["several", "a", "--other", "b"], "unrecognized arguments: --other"),
        (["several", "--flag"], "the following arguments are required: words"),
        (["single", "a", "--flag", "b"], "unrecognized arguments: b"),
    ],
    ids=str,
)
def test_mistakes_are_reported_with_the_usage_of_the_command(parser, arguments, message, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)

    error = capsys.readouterr().err
    assert error.startswith(f"usage: program {arguments[0]} [-h]")
    assert error.endswith(f"program {arguments[0]}: error: {message}\n")
