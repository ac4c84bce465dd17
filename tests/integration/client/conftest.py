"""Clients of each kind and each protocol in turn."""

from __future__ import annotations

import pathlib
import sys

import pytest

# What the tests of clients share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import asking


@pytest.fixture(params=asking.PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(params=asking.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def url(triton, protocol):
    """The server's URL of each protocol in turn."""
    return asking.url_of(triton, protocol)
