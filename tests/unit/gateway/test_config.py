"""Settings of the gateway that cannot work."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway import GatewayConfig


@pytest.mark.parametrize("port", [-1, 65536, 1.5, "8080", True, None])
def test_invalid_ports(port):
    wanted = f"GatewayConfig.port is {port!r}; use a port from 1 to 65535, or 0 for a free one."
    with pytest.raises(PyTritonBadParameterError, match=wanted):
        GatewayConfig(port=port)
