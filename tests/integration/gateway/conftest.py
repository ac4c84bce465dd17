"""A server with a gateway, shared by all tests of a module."""

from __future__ import annotations

import pytest
import serving
from gateways import bind_all, gateway_of


@pytest.fixture(scope="module")
def served():
    with serving.running_triton() as triton:
        bind_all(triton)
        triton.run()
        yield triton


@pytest.fixture(scope="module")
def gateway(served):
    with gateway_of(served) as client:
        yield client
