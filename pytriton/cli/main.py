"""The command line's entry point: parses arguments, and reports errors in one line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pytriton import __version__, json_logs
from pytriton.cli import check, gateway, infer, models, output, ray, run, serve
from pytriton.cli.command import CommandParser
from pytriton.cli.servers import DEFAULT_TIMEOUT_S
from pytriton.cli.settings import in_flags
from pytriton.client.exceptions import Failure, PyTritonClientError, PyTritonClientInferenceServerError
from pytriton.exceptions import PyTritonError

TOKEN_VARIABLE = "PYTRITON_ACCESS_TOKEN"
_TIMEOUT_HELP = (
    f"seconds to wait for a response (default: {DEFAULT_TIMEOUT_S:g}), and for a server that starts later or a model "
    "that is bound later, neither of which is waited for by default"
)
_FLAGS = {"init_timeout_s": "--timeout", "inference_timeout_s": "--timeout", "access_token": "--token"}
"""The flags for arguments of clients."""
_ARGUMENT = re.compile(rf"(?<!['\"\w])({'|'.join(_FLAGS)})(?!['\"\w])")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: The words after ``pytriton``; those of the process by default.

    Returns:
        The exit status: 0, or 1 after an error, which was printed.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        output.flush()
    except PyTritonClientError as error:
        hint = ""
        if isinstance(error, PyTritonClientInferenceServerError) and error.failure is Failure.RESTRICTED:
            hint = f" The environment variable {TOKEN_VARIABLE} sets it, too."
        _report(f"{_ARGUMENT.sub(_flag, error.message)}{hint}")
        return 1
    except PyTritonError as error:
        _report(in_flags(error.message, options.flags))
        return 1
    except output.ReaderGoneError:
        return 1
    except SystemExit as error:  # of the program that `run` imports
        if not isinstance(error.code, str) or not json_logs.is_enabled():
            raise
        _report(error.code)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _flag(argument: re.Match[str]) -> str:
    return _FLAGS[argument[0]]


def _report(message: str) -> None:
    if json_logs.is_enabled():
        json_logs.LOGGER.critical("%s", message)
    else:
        print(f"pytriton: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pytriton", description="Serve models, and call those of a server.")
    parser.add_argument("--version", action="version", version=f"pytriton {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    for module in (infer, models):
        command = _command(commands, module)
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print JSON, for other programs")
        command.add_argument(
            "--token",
            default=os.environ.get(TOKEN_VARIABLE),
            help=f"the server's access token; by default, what {TOKEN_VARIABLE} holds, or that of your own server",
        )
        command.add_argument("--ca", metavar="FILE", help="certificates (PEM) that must have signed the server's own")
        command.add_argument("--timeout", type=float, metavar="S", help=_TIMEOUT_HELP)
    run.add_arguments(_command(commands, run))
    serve.add_arguments(_command(commands, serve), TOKEN_VARIABLE)
    gateway.add_arguments(_command(commands, gateway), TOKEN_VARIABLE)
    ray.add_arguments(_command(commands, ray))
    check.add_arguments(_command(commands, check))
    return parser


def _command(commands: Any, module: ModuleType) -> CommandParser:
    command: CommandParser = commands.add_parser(
        module.NAME, help=module.HELP, description=f"{module.HELP[0].upper()}{module.HELP[1:]}."
    )
    command.set_defaults(run=module.run, flags=getattr(module, "FLAGS", {}))
    return command
