"""Helper functions for tritonclient's clients."""

from __future__ import annotations

import threading

import pytest
import tritonclient.grpc
import tritonclient.http
from client_kinds import open_triton, url_of
from peers import HOST, listening, silent
from serving import bind_floats

from pytriton.client import (
    Failure,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.auth import create_auth_headers
from pytriton.client.utils import (
    LATEST_MODEL_VERSION,
    ModelState,
    create_client_from_url,
    get_model_config,
    get_model_state,
    wait_for_model_ready,
    wait_for_server_ready,
)


@pytest.fixture
def raw(url):
    """tritonclient's own client."""
    with create_client_from_url(url) as client:
        yield client


def test_the_client_fits_the_protocol(raw, protocol):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    assert isinstance(raw, module.InferenceServerClient)
    assert raw.is_server_live()


def test_an_invalid_url():
    with pytest.raises(PyTritonClientInvalidUrlError):
        create_client_from_url("ftp://localhost")


def test_the_state_of_a_model(triton, name, raw):
    for version in (1, 2):
        bind_floats(triton, name, lambda requests: requests, model_version=version)
    for version in (None, LATEST_MODEL_VERSION, "1", "2"):
        assert get_model_state(raw, name, version) is ModelState.READY
    with pytest.raises(PyTritonClientModelUnavailableError, match="has no model 'no-such-model'"):
        get_model_state(raw, "no-such-model")
    with pytest.raises(PyTritonClientModelUnavailableError, match="version 3"):
        get_model_state(raw, name, "3")
    with pytest.raises(PyTritonClientValueError, match="model_version"):
        get_model_state(raw, name, "three")


def test_waiting(triton, name, raw):
    wait_for_server_ready(raw, timeout_s=10)
    timer = threading.Timer(0.2, lambda: bind_floats(triton, name, lambda requests: requests))
    timer.start()
    wait_for_model_ready(raw, name, timeout_s=30)
    timer.join()
    wait_for_model_ready(raw, name, "1", timeout_s=10)
    with pytest.raises(PyTritonClientModelUnavailableError, match="version 2"):
        wait_for_model_ready(raw, name, "2", timeout_s=0.4)
    with pytest.raises(PyTritonClientValueError, match="timeout_s is -1"):
        wait_for_server_ready(raw, timeout_s=-1)
    raw.is_server_ready()  # it is left open


def test_waiting_without_a_server(protocol):
    with create_client_from_url(f"{protocol}://{HOST}:1") as raw:
        with pytest.raises(PyTritonClientTimeoutError, match=rf"Waiting for {protocol}://{HOST}:1 took"):
            wait_for_server_ready(raw, timeout_s=0.2)
        with pytest.raises(PyTritonClientInferenceServerError, match="No server can be reached"):
            get_model_state(raw, "any")


def test_a_network_timeout():
    with (
        listening(silent) as port,
        create_client_from_url(f"{HOST}:{port}", network_timeout_s=0.2) as raw,
        pytest.raises(TimeoutError),
    ):
        raw.is_server_ready()


def test_headers_give_access_to_restricted_endpoints():
    with open_triton(grpc_restricted_protocol="health:triton-access-token=secret") as triton:
        triton.run()
        with create_client_from_url(url_of(triton, "grpc")) as raw:
            wait_for_server_ready(raw, timeout_s=5, headers=create_auth_headers("secret", "grpc"))
            with pytest.raises(PyTritonClientInferenceServerError, match="restricts this endpoint") as caught:
                wait_for_server_ready(raw, timeout_s=5)
            assert caught.value.failure is Failure.RESTRICTED


def test_other_objects_than_clients_of_tritonclient():
    for function in (get_model_config, get_model_state, wait_for_model_ready):
        with pytest.raises(
            PyTritonClientValueError, match="client is 'localhost'; give one of tritonclient's own clients"
        ):
            function("localhost", "any")
    with pytest.raises(PyTritonClientValueError, match="client is 'localhost'"):
        wait_for_server_ready("localhost")
