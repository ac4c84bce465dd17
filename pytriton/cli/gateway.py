"""``pytriton gateway``: serves the models of other servers through a gateway."""

from __future__ import annotations

import argparse
import dataclasses
import os
import threading
from typing import Any

from pytriton.cli.command import CommandParser, as_utf_8
from pytriton.cli.logs import add_log_format, configure
from pytriton.cli.output import announce, show
from pytriton.cli.settings import add_settings, flag_of, flags_of
from pytriton.client.tls import TLSConfig
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.gateway.access import create_key
from pytriton.gateway.config import GatewayConfig
from pytriton.utils.signals import wake_on_signals

NAME = "gateway"
FLAGS = flags_of(GatewayConfig)
HELP = "serve the models of servers as JSON, for the internet"

_EXIT_TIMEOUT_S = 25.0  # Kubernetes kills after 30 s
_FLAGS = {"true": True, "false": False}
_KINDS: dict[str, Any] = {"int": int, "float": float, "bool": _FLAGS.__getitem__}


def add_arguments(parser: CommandParser, token_variable: str) -> None:
    """Adds the servers, and a flag for each field of `GatewayConfig`.

    Args:
        parser: The command's.
        token_variable: The environment variable that holds the access token.
    """
    parser.usage = "%(prog)s [-h] [--host HOST] [--port PORT] [--<setting> VALUE ...] [--create-key NAME] URL [URL ...]"
    parser.add_list("urls", nargs="*", metavar="URL", help="host, host:8001, grpc://… or grpcs://…, with its gRPC port")
    parser.add_argument(
        "--token",
        default=os.environ.get(token_variable),
        help=f"the servers' access token; by default, what {token_variable} holds",
    )
    parser.add_argument("--ca", metavar="FILE", help="certificates (PEM) that must have signed the servers' own")
    add_log_format(parser)
    add_settings(parser.add_argument_group("settings of the gateway"), GatewayConfig, ("openai",))
    keys = parser.add_argument_group("API keys")
    keys.add_argument(
        "--create-key",
        type=as_utf_8,
        metavar="NAME",
        help="add a key to the file of --api-keys, print it, and exit; --max-requests is then that of the key",
    )
    keys.add_argument("--model", action="append", metavar="NAME", help="for the new key: a model that it may use")
    keys.add_argument("--rate", type=float, metavar="N", help="for the new key: requests per second")


def run(options: argparse.Namespace) -> None:
    """Creates a key, or serves until a signal arrives."""
    if options.create_key is not None:
        _create_key(options)
        return
    for name in ("model", "rate"):
        if getattr(options, name) is not None:
            raise PyTritonBadParameterError(f"{flag_of(name)} is for a new key; use it with --create-key NAME.")
    if not options.urls:
        raise PyTritonBadParameterError("Give the address of at least one server, like localhost:8001.")
    try:
        from pytriton.gateway import Gateway
        from pytriton.gateway.server import GatewayServer
    except ImportError as error:
        raise PyTritonRuntimeError(str(error)) from error
    is_json = configure(options)
    config = _config(options)
    tls = None if options.ca is None else TLSConfig(root_certificates=options.ca)
    server = GatewayServer(Gateway(options.urls, config, access_token=options.token, tls=tls), config)
    woken = threading.Event()
    with wake_on_signals(woken) as allow_interrupts:
        server.start()
        if not is_json:
            announce(f"The gateway listens at {server.url}.")
        server.wait(woken)
        allow_interrupts()
        lost = server.stop(_EXIT_TIMEOUT_S)
    if lost:
        raise PyTritonRuntimeError(
            f"{lost} requests took longer than the exit timeout of {_EXIT_TIMEOUT_S:g} s and are lost."
        )


def _create_key(options: argparse.Namespace) -> None:
    if options.api_keys is None:
        raise PyTritonBadParameterError("--create-key NAME also needs --api-keys FILE.")
    if options.urls:
        raise PyTritonBadParameterError(
            f"--create-key only creates a key, and serves nothing: leave out {' '.join(options.urls)}."
        )
    max_requests = _config(options).max_requests if options.max_requests is not None else None
    show(create_key(options.api_keys, options.create_key, options.model, options.rate, max_requests))


def _config(options: argparse.Namespace) -> GatewayConfig:
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(GatewayConfig):
        value = getattr(options, field.name, None)
        if value is None:
            continue
        kind = str(field.type)
        if kind.startswith("tuple["):
            value = tuple(value)
        try:
            settings[field.name] = _KINDS.get(kind, lambda given: given)(value)
        except (ValueError, KeyError) as error:
            wanted = "true or false" if kind == "bool" else "a number"
            raise PyTritonBadParameterError(f"{flag_of(field.name)} is {value!r}; give {wanted}.") from error
    return GatewayConfig(**settings)
