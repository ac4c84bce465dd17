"""The parser of a subcommand: options between words, and arguments that it refuses."""

from __future__ import annotations

import argparse

import pytest

from pytriton.cli.command import CommandParser, port_number


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
        command.add_argument("--port", type=port_number)
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
        (
            ["single", "a", "--port", "65536"],
            "argument --port: '65536' is no port; give a number from 0 to 65535",
        ),
        (["single", "a", "--port=-1"], "argument --port: '-1' is no port; give a number from 0 to 65535"),
    ],
    ids=str,
)
def test_mistakes_are_reported_with_the_usage_of_the_command(parser, arguments, message, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)

    error = capsys.readouterr().err
    assert error.startswith(f"usage: program {arguments[0]} [-h]")
    assert error.endswith(f"program {arguments[0]}: error: {message}\n")
