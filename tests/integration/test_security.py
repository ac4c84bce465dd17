"""Endpoints that require a token, over HTTP and gRPC; the others are open."""

from __future__ import annotations

import json
import os

import pytest
import tritonclient.grpc
from serving import (
    HOST,
    InferenceServerException,
    bind_floats,
    free_config,
    request_json,
    send_floats,
    server_of,
    token_of,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.triton import (
    DEFAULT_PROTECTED_ENDPOINTS,
    VALID_TRITON_ENDPOINTS,
    Triton,
    TritonLifecyclePolicy,
    TritonSecurityConfig,
)

MODEL = "Double"
GRPC_PREFIX = "triton-grpc-protocol-"

HTTP = {
    "health": ("GET", "/v2/health/ready"),
    "metadata": ("GET", "/v2"),
    "inference": ("POST", f"/v2/models/{MODEL}/infer"),
    "shared-memory": ("GET", "/v2/systemsharedmemory/status"),
    "model-config": ("GET", f"/v2/models/{MODEL}/config"),
    "model-repository": ("POST", "/v2/repository/index"),
    "statistics": ("GET", f"/v2/models/{MODEL}/stats"),
    "trace": ("GET", "/v2/trace/setting"),
    "logging": ("GET", "/v2/logging"),
}
GRPC = {
    "health": lambda client, headers: client.is_server_ready(headers),
    "metadata": lambda client, headers: client.get_server_metadata(headers),
    "shared-memory": lambda client, headers: client.get_system_shared_memory_status(headers=headers),
    "model-config": lambda client, headers: client.get_model_config(MODEL, headers=headers),
    "model-repository": lambda client, headers: client.get_model_repository_index(headers),
    "statistics": lambda client, headers: client.get_inference_statistics(MODEL, headers=headers),
    "trace": lambda client, headers: client.get_trace_settings(headers=headers),
    "logging": lambda client, headers: client.get_log_settings(headers),
}
ROW = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}


def serve(**security):
    """A server with these endpoints restricted, and a model that was bound once it ran."""
    triton = Triton(config=free_config(), security_config=TritonSecurityConfig(**security) if security else None)
    triton.run()
    bind_floats(triton, MODEL, batch(lambda x: [x * 2]))
    return triton


@pytest.fixture(scope="module")
def by_default():
    with serve() as triton:
        yield triton


@pytest.fixture(scope="module")
def all_restricted():
    with serve(access_token="my=secret", restricted_endpoints=sorted(VALID_TRITON_ENDPOINTS)) as triton:
        yield triton


def is_open_over_http(triton, endpoint, headers):
    method, path = HTTP[endpoint]
    status, response = request_json(triton, method, path, ROW if endpoint == "inference" else None, headers)
    assert status in (200, 403)
    assert status == 200 or response["error"] == "This API is restricted, expecting header 'triton-access-token'"
    return status == 200


def is_open_over_grpc(triton, endpoint, headers):
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}") as client:
        try:
            GRPC[endpoint](client, headers)
        except InferenceServerException as error:
            assert "triton-access-token" in error.message()
            return False
        return True


@pytest.mark.parametrize("endpoint", sorted(VALID_TRITON_ENDPOINTS))
def test_by_default_endpoints_that_change_the_server_need_the_token_over_http(by_default, endpoint):
    assert is_open_over_http(by_default, endpoint, {}) == (endpoint not in DEFAULT_PROTECTED_ENDPOINTS)
    assert is_open_over_http(by_default, endpoint, token_of(by_default))


@pytest.mark.parametrize("endpoint", sorted(GRPC))
def test_by_default_endpoints_that_change_the_server_need_the_token_over_grpc(by_default, endpoint):
    headers = {f"{GRPC_PREFIX}triton-access-token": by_default.get_access_token()}

    assert is_open_over_grpc(by_default, endpoint, {}) == (endpoint not in DEFAULT_PROTECTED_ENDPOINTS)
    assert is_open_over_grpc(by_default, endpoint, headers)


@pytest.mark.parametrize("endpoint", sorted(VALID_TRITON_ENDPOINTS))
def test_any_endpoint_can_require_the_token(all_restricted, endpoint):
    assert not is_open_over_http(all_restricted, endpoint, {})
    assert not is_open_over_http(all_restricted, endpoint, {"triton-access-token": "my"})
    assert is_open_over_http(all_restricted, endpoint, {"triton-access-token": "my=secret"})


def test_a_server_that_requires_the_token_everywhere_is_ready_and_loads_models(all_restricted):
    assert all_restricted.get_access_token() == "my=secret"
    assert all_restricted.is_connected()


def test_a_server_without_http_requires_the_token_too():
    config = free_config(allow_http=False)
    security = TritonSecurityConfig(restricted_endpoints=sorted(VALID_TRITON_ENDPOINTS))
    with Triton(config=config, security_config=security) as triton:
        bind_floats(triton, MODEL, batch(lambda x: [x * 2]))
        triton.run()

        assert triton.is_connected()
        assert not is_open_over_grpc(triton, "health", {})


def test_no_endpoint_requires_the_token_if_the_list_is_empty():
    with serve(restricted_endpoints=[]) as triton:
        assert all(is_open_over_http(triton, endpoint, {}) for endpoint in HTTP)


def test_restrictions_of_the_config_keep_their_header():
    config = free_config(http_restricted_api="model-repository,health:admin-key=a")
    with Triton(config=config) as triton:
        bind_floats(triton, MODEL, batch(lambda x: [x * 2]))
        triton.run()

        assert request_json(triton, "POST", "/v2/repository/index")[0] == 403
        assert request_json(triton, "POST", "/v2/repository/index", headers={"admin-key": "a"})[0] == 200
        assert request_json(triton, "GET", f"/v2/models/{MODEL}/stats")[0] == 403
        assert request_json(triton, "GET", f"/v2/models/{MODEL}/stats", headers=token_of(triton))[0] == 200
        assert send_floats(triton, MODEL, [1]) == [2]


def test_a_restarted_server_keeps_its_token():
    with serve() as triton:
        token = triton.get_access_token()
        triton.stop()
        triton.run()

        assert triton.get_access_token() == token
        assert is_open_over_http(triton, "statistics", token_of(triton))


def test_the_token_is_shown_neither_in_the_settings_nor_in_a_notebook(by_default):
    token = by_default.get_access_token()

    assert token not in json.dumps(by_default.config.to_dict(), default=str)
    assert token not in by_default._repr_html_()
    assert "READY" in by_default._repr_html_()


def test_the_command_line_of_the_server_contains_no_secrets():
    config = free_config(http_restricted_api="metadata:admin-key=their-secret", cache_config=["local,size=1048576"])
    with Triton(config=config, security_config=TritonSecurityConfig(access_token="my=secret")) as triton:
        triton.run()
        words = server_of(triton).cmdline()

        assert f"--http-port={triton.config.http_port}" in words
        assert "--cache-config=local,size=1048576" in words
        assert not [word for word in words if "secret" in word]
        assert request_json(triton, "GET", "/v2", headers={"admin-key": "their-secret"})[0] == 200
        assert not is_open_over_http(triton, "logging", {"triton-access-token": "@PYTRITON_SECRET_0"})
        assert is_open_over_http(triton, "logging", token_of(triton))


def test_folders_of_a_workspace_that_all_may_read_are_private_whatever_the_umask(tmp_path):
    (tmp_path / "sockets").mkdir()
    (tmp_path / "sockets").chmod(0o777)
    previous = os.umask(0)
    try:
        with Triton(config=free_config(), workspace=tmp_path) as triton:
            bind_floats(triton, MODEL, batch(lambda x: [x * 2]))
            triton.run()

            folders = [path for path in tmp_path.iterdir() if path.is_dir()]
            assert {"models", "sockets"} <= {folder.name for folder in folders}
            assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    finally:
        os.umask(previous)


def test_a_link_in_the_place_of_a_models_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "workspace" / "models" / MODEL
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").symlink_to(victim)
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
    triton = Triton(config=free_config(), workspace=tmp_path / "workspace", triton_lifecycle_policy=policy)
    bind_floats(triton, MODEL, batch(lambda x: [x * 2]))

    with pytest.raises(PyTritonRuntimeError, match=f"model '{MODEL}' cannot be written .*symbolic links"):
        triton.run()
    assert victim.read_text() == "precious"
