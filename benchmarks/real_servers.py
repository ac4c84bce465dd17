"""What the servers of `real_models.py` share: arguments, and the model that their processes serve."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from real_functions import MODELS, Model
from serve import parser, serve_command

# Most servers start processes of their own, which import their module again.
_MODEL = "PYTRITON_BENCHMARK_MODEL"
_WORKERS = "PYTRITON_BENCHMARK_WORKERS"

PATH = "/infer"
"""The path of requests in all but KServe's servers, where it can be chosen."""

TIMEOUT_S = 20
"""How long a server allows for a request, which waits behind others if the model is slow."""

WAIT_S = 0.001
"""How long a server waits for a batch to fill, if that has to be set: the shortest that mosec allows."""


def real_parser(description: str | None) -> argparse.ArgumentParser:
    """Parse the arguments of a server of a model."""
    made = parser(description)
    made.add_argument("--model", choices=MODELS, required=True)
    made.add_argument("--workers", type=int, required=True, help="how many compute, each on one thread")
    return made


def run_server(options: argparse.Namespace, ready: str, command: Sequence[str]) -> None:
    """Serve with a command, whose processes call `model` and `workers`, until standard input closes."""
    variables = {_MODEL: options.model, _WORKERS: str(options.workers)}
    serve_command(options.http_port, [ready], command, variables)


def model() -> Model:
    """Return the model that this process serves."""
    return MODELS[os.environ[_MODEL]]


def workers() -> int:
    """Return how many workers the server has."""
    return int(os.environ[_WORKERS])
