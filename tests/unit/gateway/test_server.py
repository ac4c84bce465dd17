from __future__ import annotations

import gc

import pytest

from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer


@pytest.mark.parametrize(("threshold", "meanwhile"), [(1000, 20_000), (50_000, 50_000), (0, 0)])
def test_garbage_is_collected_rarely_while_the_gateway_runs(threshold: int, meanwhile: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(threshold, 20, 30)
    try:
        server = GatewayServer(Gateway("localhost:1"), GatewayConfig(port=0))
        server.start()
        assert gc.get_threshold() == (meanwhile, 20, 30)
        server.stop(1)
        assert gc.get_threshold() == (threshold, 20, 30)
    finally:
        gc.set_threshold(*before)
