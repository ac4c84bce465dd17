"""Clients of each kind and each protocol in turn."""

from __future__ import annotations

import pathlib
import sys

import pytest

# What the tests of clients share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import open_client
from streamers import STREAMERS


@pytest.fixture(scope="module")
def triton():
    """A server that runs for all tests of a module; each binds models of its own name."""
    with open_client.open_triton() as triton:
        triton.run()
        yield triton


@pytest.fixture(params=open_client.PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(params=open_client.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def url(triton, protocol):
    """The server's URL of each protocol in turn."""
    return open_client.url_of(triton, protocol)


@pytest.fixture
def client(triton, name, kind, url):
    """A client of a model that adds and subtracts; of each kind and each protocol in turn, or as `every_kind` says."""
    open_client.bind_add_sub(triton, name, config=open_client.config_for(kind))
    with open_client.open_client(kind, url, name) as client:
        yield client


@pytest.fixture(params=STREAMERS)
def streamer(request):
    """A client of streams of each kind in turn."""
    return STREAMERS[request.param]
