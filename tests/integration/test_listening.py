"""Where the server listens: ports and addresses."""

from __future__ import annotations

import urllib.request

import numpy as np
import psutil
import pytest
from serving import (
    HOST,
    LATER,
    bind_floats,
    client_of,
    double,
    free_config,
    request_json,
    running_triton,
    server_of,
    servers,
    taken_port,
)

from pytriton.client import ModelClient
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.triton import Triton, TritonConfig


def listening_addresses(triton):
    connections = server_of(triton).net_connections("tcp")
    return [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("setting", ["http_port", "grpc_port", "metrics_port"])
def test_a_port_in_use_is_reported_before_the_server_starts(own_home, setting):
    with taken_port() as port:
        message = rf"Port {port} \(TritonConfig\.{setting}\) is in use"
        with pytest.raises(PyTritonRuntimeError, match=message):
            Triton(config=free_config(**{setting: port})).run()

        assert not servers()


def test_a_port_in_use_is_reported_by_run_when_the_server_starts_there():
    with taken_port() as port:
        triton = Triton(config=free_config(grpc_port=port), triton_lifecycle_policy=LATER)
        with pytest.raises(PyTritonRuntimeError, match=rf"Port {port} \(TritonConfig\.grpc_port\)"):
            triton.run()
        assert not triton.is_alive()
    with triton:
        triton.run()
        assert triton.config.grpc_port == port


@pytest.mark.parametrize("address", ["::1", "::"])
def test_ipv6_addresses(address):
    addresses = {f"{name}_address": address for name in ("http", "grpc", "metrics")}
    with Triton(config=free_config(**addresses)) as triton:
        bind_floats(triton, "Double", double)
        triton.run()
        assert triton.is_ready()
        assert {each.ip for each in listening_addresses(triton)} == {address}
        for scheme, port in (("http", triton.config.http_port), ("grpc", triton.config.grpc_port)):
            with ModelClient(f"{scheme}://[::1]:{port}", "Double") as client:
                assert client.infer_sample(np.float32([1]))["y"] == [2]
        with urllib.request.urlopen(f"http://[::1]:{triton.config.metrics_port}/metrics") as response:
            assert response.status == 200


def test_one_port_for_two_settings_is_refused():
    with taken_port() as port:
        pass
    with pytest.raises(PyTritonBadParameterError, match=rf"grpc_port and TritonConfig\.http_port are both {port}"):
        Triton(config=free_config(http_port=port, grpc_port=port)).run()
    assert not servers()


def test_port_zero_uses_a_free_port_which_config_reports():
    with running_triton() as triton:
        triton.run()
        config = triton.config

        assert len({config.http_port, config.grpc_port, config.metrics_port} - {0, None}) == 3
        assert request_json(triton, "GET", "/v2/health/ready")[0] == 200
        with client_of(triton, "grpc") as client:
            assert client.raw.is_server_ready()
        listening = {laddr.port for laddr in listening_addresses(triton)}
        assert listening == {config.http_port, config.grpc_port, config.metrics_port}


def test_the_addresses_are_those_of_the_settings():
    local = {"http_address": HOST, "grpc_address": HOST, "metrics_address": HOST}
    with running_triton(**local) as triton:
        triton.run()

        listening = {laddr.ip.removeprefix("::ffff:") for laddr in listening_addresses(triton)}
        assert listening == {HOST}


def test_an_address_of_another_host_is_refused_by_name():
    with pytest.raises(PyTritonBadParameterError, match=r"192\.0\.2\.1.*TritonConfig\.http_address"):
        Triton(config=free_config(http_address="192.0.2.1")).run()
    assert not servers()


@pytest.mark.parametrize(("off", "on"), [("allow_http", "grpc"), ("allow_grpc", "http")])
def test_one_protocol_is_enough(off, on):
    with running_triton(**{off: False}) as triton:
        bind_floats(triton, "double", double)
        triton.run()

        with client_of(triton, on) as client:
            assert client.infer("double", {"x": np.ones((1, 1), np.float32)})["y"].item() == 2
        assert triton.is_connected()


def test_settings_come_from_the_environment_where_the_config_has_none(monkeypatch):
    with taken_port() as port:
        pass
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT", str(port))
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_GRPC_PORT", "1")
    with Triton(config=TritonConfig(grpc_port=0, metrics_port=0)) as triton:
        triton.run()

        assert triton.config.http_port == port
        assert triton.config.grpc_port > 1
