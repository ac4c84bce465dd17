from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import socket
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
from forked import fork

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


@pytest.fixture
def hard_limit() -> Iterator[int]:
    """The hard limit on open files of this process, whose soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("max_connections", [1500, 1e12])
def test_the_soft_limit_on_open_files_is_raised_for_connections(
    max_connections: int, hard_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = GatewayServer(Gateway("localhost:1"), GatewayConfig(port=0, max_connections=max_connections))
    server.start()
    server.stop(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > min(max_connections, hard - 1)
    assert hard == hard_limit
    assert ("the connections of the gateway may need" in caplog.text) == (soft == hard)


@contextlib.contextmanager
def running(port: int = 0) -> Iterator[GatewayServer]:
    server = GatewayServer(Gateway("localhost:1"), GatewayConfig(port=port))
    server.start()
    yield server
    server.stop(1)


def port_of(server: GatewayServer) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_forked_child_does_not_keep_the_port() -> None:
    with running() as server:
        port = port_of(server)
        mine, other = socket.socketpair()
        with mine, other:

            def run() -> None:
                other.send(b"1")
                mine.close()
                other.recv(1)

            child = fork(run)
            other.close()
            mine.recv(1)
            ports = [each.laddr.port for each in psutil.Process(child).net_connections() if each.status == "LISTEN"]
        os.waitpid(child, 0)
        assert port not in ports
        assert urllib.request.urlopen(f"{server.url}/health/live").status == 200


def test_a_stop_frees_the_port_although_another_process_has_a_copy_of_its_socket() -> None:
    with running() as server:
        port = port_of(server)
        copy = server._socket.dup()
    with copy, running(port) as server:
        assert urllib.request.urlopen(f"{server.url}/health/live").status == 200
