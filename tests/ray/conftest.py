"""Fixtures: a cluster of several nodes on this machine, and a server whose process has joined it."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import sys
import tempfile

import pytest

ray = pytest.importorskip("ray")

# Test modules are imported by their paths; what they share is found here.
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "integration")]

import serving  # noqa: E402
from actors import MEMORY  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster():
    """Two nodes, ``a`` and ``b``, with a resource of their name; few CPUs, for each of which Ray starts a process."""
    node = {"num_cpus": 1, "object_store_memory": MEMORY}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "resources": {"a": 100}, "include_dashboard": False}
    )
    try:
        cluster.add_node(wait=False, resources={"b": 100}, **node)
        here = pathlib.Path.cwd()
        os.chdir(tempfile.gettempdir())  # Ray has its workers import from the current folder, that of the sources
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(address=cluster.address, log_to_driver=False)
        signal.signal(signal.SIGTERM, handler)  # other tests of this process do not expect Ray's
        os.chdir(here)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def triton(cluster):
    """A server that runs for all tests of a module; each binds models of its own name."""
    with serving.running_triton() as triton:
        triton.run()
        yield triton


@pytest.fixture
def name(request):
    """A model's name that no other test has."""
    return f"{request.node.originalname}_{next(_numbers)}"


@pytest.fixture
def client(triton):
    """A client that any number of threads may use at once."""
    with serving.client_of(triton, "grpc") as client:
        yield client
