"""What a client meets at first: nobody, the other protocol, or a server without its model."""

from __future__ import annotations

import socket
import time

import pytest
from client_kinds import config_for, every_kind, open_client, open_triton, url_of
from serving import HOST, Background, bind_floats, free_config, wait_until

from pytriton.client import (
    Failure,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.triton import Triton

AT_ONCE_S = 5.0
"""Far less than the timeout of 300 s, also where the machine is busy."""


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def fails_at_once(client, error, message):
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        client.infer_sample([1])
    assert time.monotonic() - started < AT_ONCE_S
    return caught.value


@pytest.fixture
def ports():
    """Ports at which nobody listens, of HTTP and gRPC."""
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        return {"http": one.getsockname()[1], "grpc": other.getsockname()[1]}


def starting(ports):
    return open_triton(http_port=ports["http"], grpc_port=ports["grpc"])


@every_kind
def test_nobody_listens(kind, protocol):
    with open_client(kind, f"{protocol}://{HOST}:1", "any") as client:
        message = (
            r"No server can be reached at .*:1.*\. Check that the server runs, and its address and port .*init_time"
        )
        fails_at_once(client, PyTritonClientTimeoutError, message)


def test_nobody_listens_at_any_of_several_addresses(protocol):
    with ModelClient([f"{protocol}://{HOST}:1", f"{protocol}://{HOST}:2"], "any") as client:
        fails_at_once(client, PyTritonClientTimeoutError, "No server can be reached at")


@every_kind
def test_a_server_that_starts_later_is_waited_for_with_a_timeout(kind, protocol, ports, name):
    with open_client(kind, f"{protocol}://{HOST}:{ports[protocol]}", name, init_timeout_s=60) as client:
        response = Background(lambda: client.infer_sample([1]))
        with starting(ports) as triton:
            bind_floats(triton, name, echo, config=config_for(kind))
            triton.run()
            assert response.finish(60).result["y"] == [1]


def test_a_client_made_of_another_waits_as_long(protocol):
    with (
        ModelClient(f"{protocol}://{HOST}:1", "any") as client,
        ModelClient.from_existing_client(client) as other,
    ):
        fails_at_once(other, PyTritonClientTimeoutError, "No server can be reached")


def test_a_model_that_comes_after_its_server_is_waited_for_from_the_start(protocol, ports, name):
    """A server that loads its models after it is ready, as nvidia-pytriton's does."""
    with ModelClient(f"{protocol}://{HOST}:{ports[protocol]}", name, init_timeout_s=60) as client:
        response = Background(lambda: client.infer_sample([1]))
        wait_until(lambda: client._session.servers[0].was_left_out)
        with starting(ports) as triton:
            triton.run()
            with ModelClient(url_of(triton, protocol), "any") as other:
                fails_at_once(other, PyTritonClientModelUnavailableError, "has no model 'any'")
            assert response.is_alive()
            bind_floats(triton, name, echo)
            assert response.finish(60).result["y"] == [1]


@every_kind
@pytest.mark.parametrize("settings", [{}, {"init_timeout_s": 60}], ids=["by default", "with a timeout"])
def test_a_model_that_a_ready_server_does_not_have(triton, name, kind, protocol, settings):
    bind_floats(triton, name, echo)
    with open_client(kind, url_of(triton, protocol), "no-such-model", **settings) as client:
        message = r"is ready and has no model 'no-such-model'; it has 'test_"
        fails_at_once(client, PyTritonClientModelUnavailableError, message)


def test_a_loop_that_waits_on_after_timeouts_finds_a_model_that_is_bound_later(triton, protocol, name):
    timeouts = 0
    with ModelClient(url_of(triton, protocol), name) as client:
        while True:
            try:
                client.wait_for_model(0.3)
                break
            except PyTritonClientTimeoutError:
                timeouts += 1
                if timeouts == 2:
                    bind_floats(triton, name, echo)
    assert timeouts == 2


@every_kind
def test_a_version_that_a_ready_server_does_not_have(triton, name, kind, protocol):
    for version in (1, 2):
        bind_floats(triton, name, echo, model_version=version, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name, model_version="3") as client:
        message = rf"is ready and has no model '{name}' version 3; it has version 1, 2 of it\."
        fails_at_once(client, PyTritonClientModelUnavailableError, message)


def test_a_server_whose_models_may_not_be_listed(protocol, name):
    with Triton(config=free_config()) as triton:
        bind_floats(triton, name, echo)
        triton.run()
        with ModelClient(url_of(triton, protocol), "no-such-model") as client:
            message = r"has no model 'no-such-model'; check its name and version, or pass access_token to have"
            fails_at_once(client, PyTritonClientModelUnavailableError, message)
        with ModelClient(url_of(triton, protocol), "no-such-model", access_token=triton.get_access_token()) as client:
            fails_at_once(client, PyTritonClientModelUnavailableError, rf"no-such-model'; it has '{name}'")


@every_kind
@pytest.mark.parametrize("ensure_model_is_ready", [True, False])
def test_the_port_of_the_other_protocol(triton, kind, protocol, ensure_model_is_ready):
    other = {"http": "grpc", "grpc": "http"}[protocol]
    url = url_of(triton, other)
    with open_client(
        kind, url.replace(other, protocol), "any", init_timeout_s=60, ensure_model_is_ready=ensure_model_is_ready
    ) as client:
        spoken = {"http": "HTTP", "grpc": "gRPC"}[other]
        error = fails_at_once(
            client, PyTritonClientInferenceServerError, rf"is a port of {spoken}; use {url}, or the server's port for"
        )
        assert error.failure is Failure.MALFORMED


def test_the_port_of_the_other_protocol_while_waiting(triton, protocol):
    other = {"http": "grpc", "grpc": "http"}[protocol]
    with ModelClient(url_of(triton, other).replace(other, protocol), "any") as client:
        for wait in (client.wait_for_model, client.wait_for_server):
            with pytest.raises(PyTritonClientInferenceServerError, match="is a port of"):
                wait(60)
