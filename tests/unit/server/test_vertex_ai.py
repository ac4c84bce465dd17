from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.server.config import TritonConfig
from pytriton.server.vertex_ai import is_vertex_ai, with_vertex_ai


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    monkeypatch.delenv("AIP_MODE", raising=False)
    monkeypatch.delenv("AIP_HTTP_PORT", raising=False)


@pytest.fixture
def inside(monkeypatch):
    monkeypatch.setenv("AIP_MODE", "PREDICTION")


def test_elsewhere_nothing_changes():
    config = TritonConfig(http_port=1)

    assert not is_vertex_ai(config)
    assert with_vertex_ai(config) == config


def test_in_its_containers_the_server_serves_its_api_and_local_http(inside):
    assert is_vertex_ai(TritonConfig())
    assert with_vertex_ai(TritonConfig()) == TritonConfig(
        allow_http=True, http_address="127.0.0.1", allow_grpc=False, allow_vertex_ai=True, vertex_ai_port=8080
    )


def test_its_port_is_used(inside, monkeypatch):
    monkeypatch.setenv("AIP_HTTP_PORT", "7080")

    assert with_vertex_ai(TritonConfig()).vertex_ai_port == 7080
    assert with_vertex_ai(TritonConfig(vertex_ai_port=0)).vertex_ai_port == 0


def test_an_invalid_port_is_refused(inside, monkeypatch):
    monkeypatch.setenv("AIP_HTTP_PORT", "http")

    with pytest.raises(PyTritonBadParameterError, match="AIP_HTTP_PORT is 'http'"):
        with_vertex_ai(TritonConfig())


def test_settings_override_its_environment(inside):
    http = with_vertex_ai(TritonConfig(allow_http=True))
    grpc = with_vertex_ai(TritonConfig(allow_grpc=True))

    assert (http.allow_http, http.allow_grpc, http.http_address) == (True, False, None)
    assert (grpc.allow_http, grpc.allow_grpc) == (False, True)


def test_in_its_containers_a_server_without_its_api_is_an_ordinary_one(inside):
    config = TritonConfig(allow_vertex_ai=False)

    assert not is_vertex_ai(config)
    assert with_vertex_ai(config) == TritonConfig(allow_vertex_ai=False, allow_http=True, allow_grpc=True)


def test_elsewhere_a_setting_enables_it_and_keeps_http():
    assert is_vertex_ai(TritonConfig(allow_vertex_ai=True))
    assert with_vertex_ai(TritonConfig(allow_vertex_ai=True)).allow_http is None
