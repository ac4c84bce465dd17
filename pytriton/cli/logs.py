"""How commands that serve log."""

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
    """Logs as JSON if the options, or the environment, say so.

    Args:
        options: What was given.

    Returns:
        Whether they do.

    Raises:
        PyTritonBadParameterError: The environment names another format, or no level.
    """
    if options.log_format is not None:
        os.environ[FORMAT_VARIABLE] = options.log_format  # for the program, and for processes that it starts
    return follow_environment()


def configure(options: argparse.Namespace) -> bool:
    """Configures logging for a command without a program that could: see `follow_options`, and text is ``INFO``."""
    is_json = follow_options(options)
    if not is_json:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return is_json
