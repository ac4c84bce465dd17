"""``pytriton serve``: serves a repository of models."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex

from pytriton.cli.command import CommandParser
from pytriton.cli.logs import add_log_format, configure
from pytriton.cli.output import show
from pytriton.cli.settings import add_settings, flags_of
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.server.config import TritonConfig
from pytriton.server.security import AccessControl, TritonSecurityConfig
from pytriton.utils.workspace import Workspace

NAME = "serve"
FLAGS = flags_of(TritonConfig) | {"TritonConfig.model_repository": "REPOSITORY"}
HELP = "serve a repository of models until SIGINT (Ctrl-C) or SIGTERM"


def add_arguments(parser: CommandParser, token_variable: str) -> None:
    """Adds the repository, and a flag for each field of `TritonConfig`.

    Args:
        parser: The command's.
        token_variable: The environment variable that holds the access token.
    """
    parser.usage = "%(prog)s [-h] [--server-path FOLDER] [--token TOKEN] [--<setting> VALUE ...] REPOSITORY"
    parser.add_list("repositories", nargs="+", metavar="REPOSITORY", help="folder with a folder for each model")
    parser.add_argument("--server-path", metavar="FOLDER", help="a server of your own, like /opt/tritonserver")
    parser.add_argument(
        "--token",
        default=os.environ.get(token_variable),
        help=f"the access token of restricted endpoints; by default, what {token_variable} holds, or a random one",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the server's command line, and start nothing")
    add_log_format(parser)
    add_settings(parser.add_argument_group("settings of the server"), TritonConfig, ("model_repository",))


def run(options: argparse.Namespace) -> None:
    """Serves until a signal arrives."""
    from pytriton.triton import Triton  # imported late: the other commands do not need it

    configure(options)
    if len(options.repositories) > 1:
        raise PyTritonBadParameterError(
            f"pytriton serve takes one repository, not {len(options.repositories)}: "
            f"{', '.join(map(repr, options.repositories))}. Put the models into one folder, or start a server for each."
        )
    values = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(TritonConfig)}
    values["model_repository"] = options.repositories[0]
    config = TritonConfig.from_dict(values)
    security = TritonSecurityConfig(access_token=options.token)
    if options.dry_run:
        _print_command(config, security, options.server_path)
        return
    with Triton(config=config, security_config=security, server_path=options.server_path) as triton:
        triton.serve()


def _print_command(config: TritonConfig, security: TritonSecurityConfig, server_path: str | None) -> None:
    """Prints the command line of the server; secrets are hidden."""
    from pytriton.server.launch import without_secrets
    from pytriton.server.local import LocalServer

    workspace = Workspace()
    try:
        access = AccessControl(security, config)
        server = LocalServer(config, access, workspace, server_path, lambda: None)
        show(f"# Triton {server.version or 'of an unknown version'}")
        words, secrets = without_secrets(server.command())
        line = shlex.join(words)
        for variable in reversed(secrets):  # the tenth begins like the first
            line = line.replace(f"@{variable}", "***")
        show(line)
    finally:
        workspace.clean()
