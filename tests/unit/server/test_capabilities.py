from __future__ import annotations

import logging
import os

import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.server.capabilities import fitting_flags, flags_of
from pytriton.server.config import TritonConfig, server_flags
from pytriton.server.files import find_server

NEWER = {"http_max_input_size": 5, "grpc_infer_thread_count": 6, "grpc_max_response_pool_size": 7}
OLD = {"http-port", "http-restricted-api", "grpc-restricted-protocol"}


def runs(current_server):
    return len((current_server / "runs").read_text().splitlines())


def test_a_server_is_queried_for_its_flags(current_server):
    known = flags_of(find_server(current_server))
    assert {"help", "http-port", "http-max-input-size", "http-restricted-api", "allow-client-shm"} < known
    assert len(known) == (current_server / "help").read_text().count("  --")


def test_it_is_queried_once_until_it_is_replaced(current_server):
    for _ in range(3):
        flags_of(find_server(current_server))
    assert runs(current_server) == 1

    program = current_server / "bin" / "tritonserver"
    text = current_server / "help"
    text.write_text(text.read_text().replace("--http-port", "--another-port"))
    os.utime(program, ns=(1, 1))
    assert "another-port" in flags_of(find_server(current_server))
    assert runs(current_server) == 2


def test_the_bundled_server_has_no_flags_of_newer_ones():
    flags = flags_of(find_server())
    assert "http-port" in flags
    assert not flags & {"http-max-input-size", "grpc-infer-thread-count", "grpc-max-response-pool-size"}
    assert "allow-client-shm" not in flags


@pytest.mark.parametrize("content", ["#!/bin/sh\nexit 7\n", "no program"])
def test_a_server_that_does_not_list_its_flags_gets_all(tmp_path, content):
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(content)
    program.chmod(0o755)
    known = flags_of(find_server(tmp_path))

    assert known == frozenset()
    assert fitting_flags(["--anything=1"], known, TritonConfig(), "/here") == ["--anything=1"]


def test_a_current_server_gets_all_settings(current_server):
    config = TritonConfig(allow_client_shm=True, **NEWER)
    flags = server_flags(config)

    assert fitting_flags(flags, flags_of(find_server(current_server)), config, "/here") == flags
    assert "--allow-client-shm=true" in flags


@pytest.mark.parametrize("field", NEWER)
def test_a_setting_that_an_older_server_lacks_is_refused_by_name(field):
    config = TritonConfig(**{field: NEWER[field]})

    with pytest.raises(
        PyTritonBadParameterError, match=rf"TritonConfig.{field} is {NEWER[field]}.* in /here has no flag"
    ):
        fitting_flags(server_flags(config), OLD, config, "/here")


def test_an_older_server_always_allows_shared_memory_of_clients():
    config = TritonConfig(allow_client_shm=True)
    assert fitting_flags(server_flags(config), OLD, config, "/here") == []

    config = TritonConfig(allow_client_shm=False)
    with pytest.raises(PyTritonBadParameterError, match=r"allow_client_shm is False.*restrict it by the token"):
        fitting_flags(server_flags(config), OLD, config, "/here")


def test_an_internal_flag_that_a_server_lacks_is_dropped_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        flags = fitting_flags(["--http-port=1", "--new-thing=2"], OLD, TritonConfig(http_port=1), "/here")

    assert flags == ["--http-port=1"]
    assert "The server in /here has no flag --new-thing, which is left out." in caplog.text


@pytest.mark.parametrize("flag", ["--http-restricted-api=x", "--grpc-restricted-protocol=x"])
def test_restrictions_are_never_dropped(flag):
    with pytest.raises(PyTritonRuntimeError, match="its endpoints cannot be restricted"):
        fitting_flags([flag], {"http-port"}, TritonConfig(), "/here")
