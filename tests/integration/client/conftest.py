"""Fixtures: clients of each kind and protocol."""

from __future__ import annotations

import pathlib
import sys

import pytest

# What the tests of clients share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import client_kinds
from streamers import STREAMERS


@pytest.fixture(scope="module")
def triton():
    """A server that runs for all tests of a module; each binds models of its own name."""
    with client_kinds.open_triton() as triton:
        triton.run()
        yield triton


@pytest.fixture(params=client_kinds.PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(params=client_kinds.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def url(triton, protocol):
    """The server's URL of each protocol in turn."""
    return client_kinds.url_of(triton, protocol)


@pytest.fixture
def client(triton, name, kind, url):
    """A client of a model that adds and subtracts; of each kind and each protocol in turn, or as `every_kind` says."""
    client_kinds.bind_add_sub(triton, name, config=client_kinds.config_for(kind))
    with client_kinds.open_client(kind, url, name) as client:
        yield client


@pytest.fixture(params=STREAMERS)
def streamer(request):
    """A client of streams of each kind in turn."""
    return STREAMERS[request.param]
