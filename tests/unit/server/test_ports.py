from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import socket
import subprocess
import sys

import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonValidationError
from pytriton.server import ports
from pytriton.server.config import TritonConfig
from pytriton.server.ports import give_back, reachable, take, unreachable, with_ports
from pytriton.server.running_servers import RunningServer

PORTS = ["http_port", "grpc_port", "metrics_port"]
LOCAL = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "metrics_address": "127.0.0.1"}


def free(**settings):
    return TritonConfig(**{**dict.fromkeys(PORTS, 0), **settings})


@contextlib.contextmanager
def taken_port(address="127.0.0.1"):
    with socket.socket() as taken:
        taken.bind((address, 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture
def unused():
    with taken_port() as port:
        pass
    return port


def test_zero_means_three_different_free_ports():
    config = with_ports(free())

    assert len({config.http_port, config.grpc_port, config.metrics_port} - {0, None}) == 3


def test_zero_avoids_ports_that_connections_might_use_during_a_restart():
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    config = with_ports(free())

    assert all(10_000 <= port < lowest for port in (config.http_port, config.grpc_port, config.metrics_port))


@pytest.mark.parametrize("content", [None, "", "1024 65535"])
def test_zero_means_any_free_port_if_connections_may_use_all(monkeypatch, tmp_path, content):
    file = tmp_path / "ip_local_port_range"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(ports, "_EPHEMERAL_PORTS", file)

    assert len({with_ports(free()).http_port for _ in range(10)} - {0}) > 1


def test_a_free_port_is_given_to_one_program_alone_before_its_server_listens(monkeypatch, unused):
    monkeypatch.setattr(ports, "_below_ephemeral", lambda: range(unused, unused + 1))
    other = """
import sys
from pytriton.server import ports
from pytriton.server.config import TritonConfig
port = int(sys.argv[1])
ports._below_ephemeral = lambda: range(port, port + 1)
print(ports.with_ports(TritonConfig(http_port=0, allow_grpc=False, allow_metrics=False)).http_port)
"""

    def chosen_by_another():
        command = [sys.executable, "-P", "-c", other, str(unused)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    config = with_ports(free(**LOCAL, allow_grpc=False, allow_metrics=False))
    assert config.http_port == unused
    assert chosen_by_another() != unused
    del config
    assert chosen_by_another() == unused


def test_the_chosen_ports_are_free_for_the_server():
    config = with_ports(free(**LOCAL))

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", config.http_port))
        listener.listen()


def test_a_port_with_a_number_is_kept(unused):
    assert with_ports(free(http_port=unused)).http_port == unused


def test_other_settings_and_the_given_config_are_not_changed():
    given = free(log_verbose=3)
    config = with_ports(given)

    assert config.log_verbose == 3
    assert given.http_port == 0


@pytest.mark.parametrize("setting", PORTS)
def test_the_error_for_a_port_in_use_names_its_number_and_setting(setting):
    with taken_port() as port, pytest.raises(PyTritonRuntimeError, match=rf"Port {port} \(TritonConfig.{setting}\)"):
        with_ports(free(**{setting: port}))


def test_a_port_in_use_on_one_address_is_in_use_on_all():
    with taken_port() as port, pytest.raises(PyTritonRuntimeError, match=rf"{port} .* in use on 0\.0\.0\.0"):
        with_ports(free(http_port=port))


def test_the_error_for_a_port_names_the_process_whose_triton_has_it(monkeypatch):
    with taken_port() as port:
        own = RunningServer(1234, [f"http://127.0.0.1:{port}", "grpc://127.0.0.1:1"], "token")
        monkeypatch.setattr("pytriton.server.ports.running_servers", lambda: [own])
        with pytest.raises(PyTritonRuntimeError, match="by a Triton that you run in process 1234: stop that process"):
            with_ports(free(http_port=port))


def test_a_port_in_use_on_another_address_is_free():
    with taken_port("127.0.0.2") as port:
        assert with_ports(free(**LOCAL, grpc_port=port)).grpc_port == port


@pytest.mark.parametrize("setting", PORTS)
def test_unused_ports_are_not_checked(setting):
    with taken_port() as port:
        config = with_ports(free(**{setting: port, f"allow_{setting.removesuffix('_port')}": False}))

    assert getattr(config, setting) == port


def test_one_port_for_two_settings_is_refused_by_their_names(unused):
    with pytest.raises(PyTritonBadParameterError, match=f"metrics_port and TritonConfig.http_port are both {unused}"):
        with_ports(free(http_port=unused, metrics_port=unused))


@pytest.mark.parametrize("port", [-1, 65536, 1.5, "eight", True])
def test_an_invalid_port_is_refused_by_setting(port):
    wanted = f"TritonConfig.grpc_port is {port!r}; use a port from 1 to 65535, or 0."
    with pytest.raises(PyTritonBadParameterError, match=wanted):
        TritonConfig(grpc_port=port)
    changed = free()
    changed.grpc_port = port
    with pytest.raises(PyTritonBadParameterError, match=wanted):
        with_ports(changed)


def test_an_address_of_another_host_is_refused_by_setting():
    with pytest.raises(PyTritonBadParameterError, match=r"Cannot listen on 192\.0\.2\.1.*TritonConfig.grpc_address"):
        with_ports(free(grpc_address="192.0.2.1"))


def test_an_invalid_address_is_refused_by_setting():
    with pytest.raises(PyTritonBadParameterError, match=r"TritonConfig.http_address"):
        with_ports(free(http_address="no such host.invalid"))


def test_metrics_listen_where_http_does():
    with taken_port("127.0.0.2") as port:
        config = free(http_address="127.0.0.1", metrics_port=port)
        assert with_ports(config).metrics_port == port


def test_a_server_without_http_and_grpc_is_refused():
    config = free(allow_http=False)
    config.allow_grpc = False
    with pytest.raises(PyTritonValidationError, match=r"allow_http and TritonConfig\.allow_grpc"):
        with_ports(config)


@pytest.mark.parametrize(
    ("address", "expected"),
    [(None, "127.0.0.1"), ("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7")],
)
def test_addresses_of_a_server_from_this_host(address, expected):
    assert reachable(address) == expected


def test_a_port_of_another_server_of_this_process_is_in_use_before_it_listens(unused):
    config = with_ports(free(**LOCAL, http_port=unused))
    take(config)
    with pytest.raises(PyTritonRuntimeError, match=rf"Port {unused} .* by another Triton of this process"):
        with_ports(free(**LOCAL, http_port=unused))
    give_back(config)

    assert with_ports(free(**LOCAL, http_port=unused)).http_port == unused


def test_a_port_without_a_listener_is_unreachable():
    with taken_port() as http, taken_port() as metrics:
        config = free(**LOCAL, http_port=http, metrics_port=metrics, allow_grpc=False)
        assert unreachable(config) is None
        with taken_port() as closed:
            pass
        config = dataclasses.replace(config, metrics_port=closed)
        port = f"127.0.0.1 port {closed} (TritonConfig.metrics_port)"
        assert unreachable(config) == f"{port} cannot be reached: [Errno 111] Connection refused."
