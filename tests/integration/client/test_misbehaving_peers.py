"""Clients of every kind against peers that do not behave like Triton."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from client_kinds import (
    STREAM_KINDS,
    WAYS,
    config_for,
    every_kind,
    every_kind_that_loads,
    known,
    open_client,
    open_triton,
    url_of,
)
from peers import (
    HOST,
    closing,
    dribbling,
    full_backlog,
    hanging_up_in_mid_response,
    listening,
    proxy_of,
    silent,
    speaking_html,
)
from serving import Background, bind_floats, server_of, wait_until

from pytriton.client import (
    Failure,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import ModelConfig

TIMEOUT_S = 0.15
ANSWERED_S = 0.4
"""Long enough for a response, also where the machine is busy."""
SLACK_S = 4.0
MODELS = ("once", "stream")
"""Of a server for all clients: one with single responses, and one for streams."""


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@contextlib.contextmanager
def takes_about(seconds):
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert 0.9 * seconds < took < seconds + SLACK_S, took


def client_of(kind, protocol, port, **arguments):
    return open_client(kind, f"{protocol}://{HOST}:{port}", "floats", **arguments)


@contextlib.contextmanager
def client_behind_a_proxy(kind, protocol, triton, name):
    """Yields a client of a model that echoes, and the proxy in between."""
    bind_floats(triton, name, echo, config=config_for(kind))
    server_port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    with (
        proxy_of(server_port) as (proxy, port),
        open_client(kind, f"{protocol}://{HOST}:{port}", name, restart_timeout_s=0) as client,
    ):
        yield client, proxy


@every_kind
@pytest.mark.parametrize("behave", [silent, dribbling])
def test_inference_times_out(kind, protocol, behave):
    with (
        listening(behave) as port,
        client_of(kind, protocol, port, inference_timeout_s=TIMEOUT_S, **known(kind)) as client,
    ):
        for _ in range(2):
            with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError, match=f"{port} did not respond"):
                client.infer_sample([1])
        with takes_about(0.1), pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.1 s"):
            client.infer_sample([1], timeout_s=0.1)


@every_kind
@pytest.mark.parametrize("behave", [silent, dribbling])
def test_waiting_for_a_model_times_out(kind, protocol, behave):
    with (
        listening(behave) as port,
        client_of(kind, protocol, port) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError, match=r"Waiting for model 'floats' at"),
    ):
        client.wait_for_model(TIMEOUT_S)


@every_kind
@pytest.mark.parametrize("ensure_model_is_ready", [True, False])
def test_requesting_the_configuration_times_out(kind, protocol, ensure_model_is_ready):
    arguments = {"init_timeout_s": TIMEOUT_S, "ensure_model_is_ready": ensure_model_is_ready}
    with listening(silent) as port, client_of(kind, protocol, port, **arguments) as client:
        with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError):
            client.model_config  # noqa: B018
        with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([1])


@every_kind_that_loads
def test_loading_and_waiting_for_the_server_time_out(kind, protocol):
    with listening(silent) as port, client_of(kind, protocol, port, init_timeout_s=TIMEOUT_S) as client:
        for call in (client.load_model, client.unload_model, lambda: client.wait_for_server(TIMEOUT_S)):
            with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError):
                call()


@every_kind
def test_connecting_times_out(kind, protocol):
    with (
        full_backlog() as port,
        client_of(kind, protocol, port, inference_timeout_s=TIMEOUT_S, **known(kind)) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample([1])


@every_kind
def test_a_handshake_that_does_not_end_times_out(kind, protocol):
    with (
        listening(silent) as port,
        client_of(kind, f"{protocol}s", port, inference_timeout_s=TIMEOUT_S, **known(kind)) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample([1])


@every_kind
def test_connecting_to_a_closed_port(kind, protocol):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        with client_of(kind, protocol, unused.getsockname()[1], **known(kind)) as client:
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError, match="No server can be") as caught:
                client.infer_sample([1])
            assert caught.value.failure is Failure.UNREACHABLE
            with takes_about(ANSWERED_S), pytest.raises(PyTritonClientTimeoutError, match="No server can be reached"):
                client.wait_for_model(ANSWERED_S)


@every_kind
def test_an_unknown_host_name(kind, protocol):
    with open_client(kind, f"{protocol}://no-such-host.invalid:8000", "floats", **known(kind)) as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match=r"No server can be reached at .*no-such-host"
        ) as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE


@every_kind
@pytest.mark.parametrize("behave", [closing, hanging_up_in_mid_response])
def test_a_connection_that_is_closed(kind, protocol, behave):
    with listening(behave) as port, client_of(kind, protocol, port, **known(kind)) as client:
        for _ in range(2):
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError) as caught:
                client.infer_sample([1])
            # gRPC that was hung up on before the first frame has sent nothing.
            unsent = protocol == "grpc" and behave is closing
            assert caught.value.failure is (Failure.UNREACHABLE if unsent else Failure.LOST), caught.value


@every_kind
@pytest.mark.parametrize("status", [200, 404, 502, 503])
def test_html_in_place_of_a_response(kind, protocol, status):
    with listening(speaking_html(status)) as port, client_of(kind, protocol, port, **known(kind)) as client:
        for _ in range(2):
            with (
                takes_about(0),
                pytest.raises(PyTritonClientInferenceServerError, match="does not respond like Triton") as caught,
            ):
                client.infer_sample([1])
            assert caught.value.failure is Failure.MALFORMED


@every_kind
def test_html_in_place_of_a_configuration(kind, protocol):
    with (
        listening(speaking_html(200)) as port,
        client_of(kind, protocol, port, ensure_model_is_ready=False) as client,
        takes_about(0),
        pytest.raises(PyTritonClientInferenceServerError, match="does not respond like Triton"),
    ):
        client.infer_sample([1])


@every_kind
def test_html_while_waiting_for_a_model(kind, protocol):
    with (
        listening(speaking_html(502)) as port,
        client_of(kind, protocol, port, init_timeout_s=TIMEOUT_S) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError, match=rf"Waiting for model 'floats' at .*{port} took longer"),
    ):
        client.infer_sample([1])


@every_kind
def test_a_proxy_whose_server_is_back(kind, protocol, triton, name):
    with client_behind_a_proxy(kind, protocol, triton, name) as (client, proxy):
        assert client.infer_sample([1])["y"] == [1]
        proxy.stand_in(speaking_html(502))
        with contextlib.suppress(PyTritonClientInferenceServerError):  # the end may not have been noticed yet
            client.infer_sample([1])
        with pytest.raises(PyTritonClientInferenceServerError, match="does not respond like Triton") as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.MALFORMED
        proxy.stand_in(None)
        assert _asked_twice(client, [2])["y"] == [2]


@every_kind
def test_a_truncated_response(kind, protocol, triton, name):
    with client_behind_a_proxy(kind, protocol, triton, name) as (client, proxy):
        large = np.arange(100_000, dtype=np.float32)
        assert (client.infer_sample(large)["y"] == large).all()
        proxy.cut_after(1000)
        with takes_about(0), pytest.raises(PyTritonClientInferenceServerError, match="broke before") as caught:
            client.infer_sample(large)
        assert caught.value.failure is Failure.LOST
        assert (client.infer_sample(large)["y"] == large).all()


@every_kind
def test_a_connection_that_broke_while_it_was_idle(kind, protocol, triton, name):
    with client_behind_a_proxy(kind, protocol, triton, name) as (client, proxy):
        client.infer_sample([1])
        proxy.cut()
        assert _asked_twice(client, [2])["y"] == [2]


def _asked_twice(client, value):
    """The first time, the client may not have noticed yet that its connection was cut."""
    with contextlib.suppress(PyTritonClientInferenceServerError):
        client.infer_sample(value)
    return client.infer_sample(value)


def test_a_server_that_is_killed_and_restarted():
    """All clients at once, for it takes a while."""
    held, gate = [], threading.Event()

    async def hold(requests):
        held.extend(requests)
        await asyncio.to_thread(gate.wait, 60)
        return echo(requests)

    def serve(infer_func, **ports):
        triton = open_triton(restart=False, **ports)
        for model in MODELS:
            bind_floats(triton, model, infer_func, config=ModelConfig(decoupled=model == "stream"))
        triton.run()
        return triton

    def served(infer_func, ports):
        with contextlib.suppress(PyTritonRuntimeError):
            return serve(infer_func, **ports)

    first = serve(hold)
    ports = {"http_port": first.config.http_port, "grpc_port": first.config.grpc_port}
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                open_client(kind, url_of(first, protocol), MODELS[kind in STREAM_KINDS], restart_timeout_s=0)
            )
            for kind, protocol in WAYS
        ]
        requested = [Background(lambda client=client: client.infer_sample([1])) for client in clients]
        wait_until(lambda: len(held) == len(clients))
        server_of(first).kill()
        for each in requested:
            assert each.finish().error.failure is Failure.LOST
        for client in clients:
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError) as caught:
                client.infer_sample([1])
            assert caught.value.failure is Failure.UNREACHABLE
        gate.set()
        first.stop()
        with wait_until(lambda: served(echo, ports), what="the ports are free"):
            for client in clients:
                assert client.infer_sample([2])["y"] == [2]


@every_kind
def test_a_missing_model(kind, protocol, triton):
    url = url_of(triton, protocol)
    with open_client(kind, url, "no-such-model") as client:
        missing = r"is ready and has no model 'no-such-model'; it has "
        with takes_about(0), pytest.raises(PyTritonClientModelUnavailableError, match=missing):
            client.infer_sample([1])
    with (
        open_client(kind, url, "no-such-model", ensure_model_is_ready=False) as client,
        takes_about(0),
        pytest.raises(PyTritonClientModelUnavailableError, match="is not found"),
    ):
        client.infer_sample([1])
