"""``pytriton run``: serves the models of a program."""

from __future__ import annotations

import argparse
import functools
import logging
import threading
from typing import TYPE_CHECKING

from pytriton.cli.app import App
from pytriton.cli.command import port_number
from pytriton.cli.logs import add_log_format, follow_options
from pytriton.cli.workers import replaced
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.run_options import RunOptions, in_force
from pytriton.server.config import TritonConfig
from pytriton.utils.signals import wake_on_signals

if TYPE_CHECKING:
    from pytriton.gateway import GatewayConfig
    from pytriton.triton import TritonBase

NAME = "run"
FLAGS = {
    "TritonConfig.http_port": "--port",
    "TritonConfig.grpc_port": "--grpc-port",
    "TritonConfig.metrics_port": "--metrics-port",
    "TritonConfig.http_address": "--host",
    "TritonConfig.grpc_address": "--host",
    "TritonConfig.metrics_address": "--host",
    "GatewayConfig.port": "--gateway",
    "GatewayConfig.host": "--host",
}
HELP = "serve the models of a Python program, and reload it when it changes"

LOGGER = logging.getLogger(__name__)

_GATEWAY_PORT = 8080
_JOIN_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the program, and the options."""
    parser.add_argument(
        "app",
        metavar="APP",
        help="a file or a module with a Triton, or with functions under the decorator pytriton.model: app.py, "
        "package.module, or app.py:triton if there are several",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen at: the gateway's, or without it, Triton's"
    )
    parser.add_argument("--port", type=port_number, metavar="N", help="port of HTTP; 0 is any free one")
    parser.add_argument("--grpc-port", type=port_number, metavar="N", help="port of gRPC; 0 is any free one")
    parser.add_argument("--metrics-port", type=port_number, metavar="N", help="port of the metrics; 0 is any free one")
    parser.add_argument(
        "--gateway",
        type=port_number,
        nargs="?",
        const=_GATEWAY_PORT,
        metavar="PORT",
        help=f"serve JSON for the internet, too, at this port (default: {_GATEWAY_PORT}); put it after APP",
    )
    parser.add_argument(
        "--workers",
        choices=["thread", "process"],
        default="thread",
        help="where functions run: threads of one process (default), or a process for each",
    )
    parser.add_argument("--instances", type=int, metavar="N", help="how many instances of each function share the load")
    add_log_format(parser)
    parser.add_argument("--reload", action="store_true", help="serve changed functions as soon as a file is saved")


def run(options: argparse.Namespace) -> None:
    """Serves until a signal arrives."""
    follow_options(options)
    app = App.parse(options.app)
    if options.instances is not None and options.instances < 1:
        raise PyTritonBadParameterError(f"--instances is {options.instances}; give a number from 1 up.")
    program = app.module if options.workers == "process" else None
    run_options = RunOptions(
        program=app.name,
        config=_config(options),
        gateway=_gateway(options),
        workers=functools.partial(replaced, instances=options.instances, program=program),
    )
    with in_force(run_options):
        if options.reload:
            _serve_and_reload(app, run_options)
            return
        module = app.load()
        if not run_options.has_served:
            triton = app.find_triton(module)
            _check_options(app, triton, run_options)
            triton.serve()


def _serve_and_reload(app: App, options: RunOptions) -> None:
    from pytriton.cli.reloader import Reloader

    reloader = Reloader(app)
    options.may_start = False
    triton = reloader.load()
    _check_options(app, triton, options)
    options.may_start = True
    (triton.run if options.gateway is None else triton.run_behind_gateway)()
    stop = threading.Event()
    serving = _Serving(triton, stop)
    with wake_on_signals(stop) as allow_interrupts:
        serving.start()
        options.may_start = False
        reloader.run(stop)
        allow_interrupts()
        while serving.is_alive():  # it may be about to serve
            triton.stop()
            serving.join(_JOIN_S)
    if serving.error is not None:
        raise serving.error


class _Serving(threading.Thread):
    """Serves in a thread, so that the main thread is free to reimport the program."""

    def __init__(self, triton: TritonBase, stop: threading.Event) -> None:
        super().__init__(name="pytriton-serve", daemon=True)
        self.error: Exception | None = None
        self._triton = triton
        self._stop_event = stop

    def run(self) -> None:
        try:
            self._triton.serve()
        except Exception as error:
            self.error = error
        finally:
            self._stop_event.set()


def _config(options: argparse.Namespace) -> TritonConfig:
    host = None if options.gateway is not None else options.host
    return TritonConfig(
        http_port=options.port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        http_address=host,
        grpc_address=host,
        metrics_address=host,
    )


def _gateway(options: argparse.Namespace) -> GatewayConfig | None:
    if options.gateway is None:
        return None
    try:
        from pytriton.gateway import GatewayConfig
    except ImportError as error:
        raise PyTritonRuntimeError(str(error)) from error
    return GatewayConfig(port=options.gateway, **({} if options.host is None else {"host": options.host}))


def _check_options(app: App, triton: TritonBase, options: RunOptions) -> None:
    from pytriton.triton import Triton

    if not isinstance(triton, Triton) and options.config != TritonConfig():
        raise PyTritonBadParameterError(
            f"{app.name} has a RemoteTriton, whose server another process starts: set the host and the ports there."
        )
