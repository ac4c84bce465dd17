"""Runs an example's server with free ports, and prints the URLs: ``python on_free_ports.py SERVER``."""

from __future__ import annotations

import dataclasses
import runpy
import sys
from pathlib import Path

from pytriton.gateway import GatewayConfig
from pytriton.triton import Triton

_start_gateway = Triton._start_gateway


def start_gateway(triton: Triton, config: GatewayConfig) -> None:
    _start_gateway(triton, dataclasses.replace(config, port=0))
    assert triton._gateway is not None
    print(f"Serving on http://127.0.0.1:{triton.config.http_port} and {triton._gateway.url}", flush=True)


if __name__ == "__main__":
    Triton._start_gateway = start_gateway  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
