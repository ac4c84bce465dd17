"""Logging of the commands that serve."""

from __future__ import annotations

import argparse
import logging
import os

from pytriton.json_logs import FORMAT_VARIABLE, FORMATS, follow_environment


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Adds the flag for the format of the log."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        help=f"how to log: text, or a JSON object in each line; by default, what {FORMAT_VARIABLE} says, or text",
    )


def follow_options(options: argparse.Namespace) -> bool:
    """Enables JSON logs if the options or the environment request them.

    Args:
        options: The options.

    Returns:
        Whether they are enabled.

    Raises:
        PyTritonBadParameterError: The environment names an unknown format or level.
    """
    if options.log_format is not None:
        os.environ[FORMAT_VARIABLE] = options.log_format  # for the program and the processes that it starts
    return follow_environment()


def configure(options: argparse.Namespace) -> bool:
    """Configures logging for a command that runs no program: see `follow_options`; text logs are at ``INFO``."""
    is_json = follow_options(options)
    if not is_json:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return is_json
