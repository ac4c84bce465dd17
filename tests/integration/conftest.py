"""Fixtures: a running server per module, and clients of both protocols."""

from __future__ import annotations

import itertools
import logging
import pathlib
import sys

import pytest

# Test modules are imported by their paths; what they share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import serving
from bls_models import bind_callees
from streaming import COUNTERS
from watching import Watched, unwanted_records

_numbers = itertools.count()


@pytest.fixture(scope="module")
def triton():
    """A server that runs for all tests of a module; each binds models of its own name."""
    with serving.running_triton() as triton:
        triton.run()
        yield triton


@pytest.fixture
def name(request):
    """A model's name that no other test has."""
    return f"{request.node.originalname}_{next(_numbers)}"


@pytest.fixture(params=["http", "grpc"])
def client(request, triton):
    """A client of each protocol in turn."""
    with serving.client_of(triton, request.param) as client:
        yield client


@pytest.fixture
def http_client(triton):
    with serving.client_of(triton, "http") as client:
        yield client


@pytest.fixture
def grpc_client(triton):
    """A client that any number of threads may use at once."""
    with serving.client_of(triton, "grpc") as client:
        yield client


@pytest.fixture(params=COUNTERS)
def counter(request):
    """A generator function and an async one in turn, which do the same."""
    return COUNTERS[request.param]


@pytest.fixture
def watched():
    return Watched()


@pytest.fixture
def quiet_log(caplog):
    """Checks that nothing is logged as a warning or an error."""
    caplog.set_level(logging.INFO)
    yield
    assert not unwanted_records(caplog)


@pytest.fixture(scope="module")
def callees(triton):
    """Models that any test may call."""
    bind_callees(triton)


@pytest.fixture
def run_script(tmp_path):
    """Runs a script until it says that it is ready."""
    started = []

    def run(code, *arguments):
        script = serving.Script(tmp_path, code, *arguments)
        started.append(script)
        assert script.line().startswith("ready")
        (script.server,) = serving.servers(script.pid)
        return script

    yield run
    for script in started:
        script.__exit__()
