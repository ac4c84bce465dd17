"""``pytriton ray``: shows the pools of a Ray cluster, and publishes their replicas' metrics targets for Prometheus."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import signal
import socket
import threading
from pathlib import Path
from typing import Any

from pytriton.cli.output import announce, show
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.utils.signals import wait_for_event, wake_on_signals

NAME = "ray"
HELP = "show the pools of a Ray cluster, and where Prometheus finds their metrics"

_CONNECT_TIMEOUT_S = 10.0
_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two commands.

    Args:
        parser: The command's.
    """
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="show pools: their state, their replicas, and the load of each")
    status.add_argument("--json", action="store_true", help="print JSON, for other programs")
    status.set_defaults(command=_status)
    targets = commands.add_parser("targets", help="publish the replicas' metrics targets for Prometheus")
    places = targets.add_mutually_exclusive_group()
    places.add_argument("--listen", metavar="HOST:PORT", help="serve them to Prometheus' http_sd_configs")
    places.add_argument("--file", type=Path, metavar="PATH", help="keep them in a file, for its file_sd_configs")
    targets.set_defaults(command=_targets)
    for command in (status, targets):
        command.add_argument("pool", nargs="?", metavar="NAME", help="one pool; by default, all")
        command.add_argument(
            "--address",
            default="auto",
            help="the cluster's, like 10.0.0.10:6379; by default, that of the Ray node on this machine",
        )


def run(options: argparse.Namespace) -> None:
    """Runs one of the two commands."""
    options.command(options)


def _status(options: argparse.Namespace) -> None:
    _connect(options.address)
    from pytriton.ray import connect, pools

    names = pools() if options.pool is None else [options.pool]
    statuses = [connect(name).status() for name in names]
    if options.json:
        show(json.dumps([dataclasses.asdict(status) for status in statuses]))
    elif statuses:
        show("\n\n".join(map(str, statuses)))
    else:
        show("The cluster has no pool.")


def _targets(options: argparse.Namespace) -> None:
    place = None if options.listen is None else _place(options.listen)
    _connect(options.address)
    from pytriton.ray import connect
    from pytriton.ray.pools.discovery import DiscoveryServer, keep_file, targets

    if options.pool is not None:
        connect(options.pool)  # the error lists the pools if this one does not exist

    def read() -> list[dict[str, Any]]:
        return targets(options.pool)

    ending = threading.Event()
    with wake_on_signals(ending):
        if options.file is not None:
            keep_file(options.file, ending, read)
        elif place is not None:
            server = DiscoveryServer(*place, read)
            server.start()
            announce(f"Prometheus finds the targets at {server.url}")
            wait_for_event(ending)
            server.stop()
        else:
            show(json.dumps(read(), indent=2))


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    is_host = bool(host) and (":" not in host or (host[0], host[-1]) == ("[", "]"))
    if not is_host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise PyTritonBadParameterError(f"--listen is {text!r}; give HOST:PORT, like 127.0.0.1:9400 or [::1]:9400.")
    return host.strip("[]"), int(port)


def _connect(address: str) -> None:
    """Connects to the cluster.

    Raises:
        PyTritonRuntimeError: There is no cluster, or the package is missing.
    """
    try:
        import ray
        from ray._private.services import canonicalize_bootstrap_address

        import pytriton.ray  # noqa: F401
    except ImportError as error:
        raise PyTritonRuntimeError(
            f"pytriton ray needs more packages: pip install 'pytriton[ray]' ({error})."
        ) from error
    try:
        found = canonicalize_bootstrap_address("auto") if address == "auto" else address
        if found is None:
            raise ConnectionError("no Ray node runs on this machine")
        _check_reachable(found)
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(address=found, logging_level=logging.ERROR, log_to_driver=False)
        if signal.getsignal(signal.SIGTERM) is not handler:  # Ray's own would end the program with an exit status of 15
            signal.signal(signal.SIGTERM, handler)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise PyTritonRuntimeError(f"There is no Ray cluster at {address!r}: {reason}.") from error


def _check_reachable(address: str) -> None:
    """Opens a connection, because Ray would try for a minute and then exit."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _HIGHEST_PORT:
        raise PyTritonBadParameterError(f"--address is {address!r}; give auto, or HOST:PORT like 10.0.0.10:6379.")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
