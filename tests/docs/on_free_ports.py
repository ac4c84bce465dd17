"""Runs an example's server with free ports, and prints the URLs: ``python on_free_ports.py SERVER``."""

from __future__ import annotations

import dataclasses
import runpy
import sys
from pathlib import Path

from pytriton import triton_base
from pytriton.gateway import GatewayConfig
from pytriton.gateway.server import GatewayServer
from pytriton.served_gateway import start_gateway
from pytriton.triton import Triton


def start_on_free_port(triton: Triton, config: GatewayConfig) -> GatewayServer:
    gateway = start_gateway(triton, dataclasses.replace(config, port=0))
    print(f"Serving on http://127.0.0.1:{triton.config.http_port} and {gateway.url}", flush=True)
    return gateway


if __name__ == "__main__":
    triton_base.start_gateway = start_on_free_port  # type: ignore[assignment]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
