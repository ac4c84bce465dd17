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


@pytest.mark.parametrize(
    "header", ["", "x tenant", "x:y", "x\n", "ü", b"x", None, "Priority", "timeout", "shared_memory_a"]
)
def test_headers_that_cannot_become_parameters(header):
    with pytest.raises(
        PyTritonBadParameterError, match=r"forwarded_headers is .*; give a tuple of names, such as 'x-tenant'"
    ):
        GatewayConfig(forwarded_headers=("x-a", header))
