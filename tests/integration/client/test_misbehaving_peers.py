"""What every kind of client does when what it speaks with is no server in good health."""

from __future__ import annotations

import contextlib
import re
import socket
import time

import numpy as np
import pytest
from asking import asking, open_triton, url_of
from peers import (
    HOST,
    closing,
    dribbling,
    full_backlog,
    hanging_up_in_mid_answer,
    listening,
    proxy_of,
    silent,
    speaking_html,
)
from serving import bind_floats, wait_until

from pytriton.client import (
    Failure,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config.triton_model_config import TritonModelConfig

FLOAT = {"data_type": "TYPE_FP32", "dims": [-1]}
CONFIG = TritonModelConfig.from_dict(
    {"name": "floats", "max_batch_size": 4, "input": [{"name": "x", **FLOAT}], "output": [{"name": "y", **FLOAT}]}
)
TIMEOUT_S = 0.3
KNOWN = {"model_config": CONFIG, "ensure_model_is_ready": False}


@contextlib.contextmanager
def takes_about(seconds):
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert 0.9 * seconds < took < seconds + 2, took


def client_of(kind, protocol, port, **arguments):
    return asking(kind, f"{protocol}://{HOST}:{port}", "floats", **arguments)


@pytest.mark.parametrize("behave", [silent, dribbling])
def test_inference_times_out(kind, protocol, behave):
    with (
        listening(behave) as port,
        client_of(kind, protocol, port, inference_timeout_s=TIMEOUT_S, **KNOWN) as client,
    ):
        for _ in range(2):
            with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError, match=f"{port} did not answer"):
                client.infer_sample([1])
        with takes_about(0.1), pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.1 s"):
            client.infer_sample([1], timeout_s=0.1)


@pytest.mark.parametrize("behave", [silent, dribbling])
def test_waiting_for_a_model_times_out(kind, protocol, behave):
    with (
        listening(behave) as port,
        client_of(kind, protocol, port) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError, match=r"Waiting for model 'floats' at"),
    ):
        client.wait_for_model(TIMEOUT_S)


@pytest.mark.parametrize("ensure_model_is_ready", [True, False])
def test_asking_for_the_configuration_times_out(kind, protocol, ensure_model_is_ready):
    arguments = {"init_timeout_s": TIMEOUT_S, "ensure_model_is_ready": ensure_model_is_ready}
    with listening(silent) as port, client_of(kind, protocol, port, **arguments) as client:
        with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError):
            client.model_config  # noqa: B018
        with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([1])


def test_connecting_times_out(kind, protocol):
    with (
        full_backlog() as port,
        client_of(kind, protocol, port, inference_timeout_s=TIMEOUT_S, **KNOWN) as client,
        takes_about(TIMEOUT_S),
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample([1])


def test_connecting_where_nobody_listens(kind, protocol):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        with client_of(kind, protocol, unused.getsockname()[1], **KNOWN) as client:
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError, match="No server can be") as caught:
                client.infer_sample([1])
            assert caught.value.failure is Failure.UNREACHABLE
            with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientTimeoutError, match="No server can be reached"):
                client.wait_for_model(TIMEOUT_S)


def test_a_name_that_is_not_known(kind, protocol):
    with asking(kind, f"{protocol}://no-such-host.invalid:8000", "floats", **KNOWN) as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match=r"No server can be reached at .*no-such-host"
        ) as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE


@pytest.mark.parametrize("behave", [closing, hanging_up_in_mid_answer])
def test_a_connection_that_is_closed(kind, protocol, behave):
    with listening(behave) as port, client_of(kind, protocol, port, **KNOWN) as client:
        for _ in range(2):
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError) as caught:
                client.infer_sample([1])
            # gRPC that was hung up on before the first frame has sent nothing.
            unsent = protocol == "grpc" and behave is closing
            assert caught.value.failure is (Failure.UNREACHABLE if unsent else Failure.LOST), caught.value


@pytest.mark.parametrize("status", [200, 404, 502, 503])
def test_html_in_place_of_an_answer(kind, protocol, status):
    with listening(speaking_html(status)) as port, client_of(kind, protocol, port, **KNOWN) as client:
        for _ in range(2):
            with (
                takes_about(0),
                pytest.raises(PyTritonClientInferenceServerError, match="does not speak as a Trit") as caught,
            ):
                client.infer_sample([1])
            assert caught.value.failure is Failure.GARBLED


def test_html_in_place_of_a_configuration(kind, protocol):
    with (
        listening(speaking_html(200)) as port,
        client_of(kind, protocol, port, ensure_model_is_ready=False) as client,
        takes_about(0),
        pytest.raises(PyTritonClientInferenceServerError, match="does not speak as a Triton"),
    ):
        client.infer_sample([1])


def test_an_answer_that_breaks_off(kind, protocol, triton, name):
    bind_floats(triton, name, lambda requests: [{"y": each["x"]} for each in requests])
    server_port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    with proxy_of(server_port) as (proxy, port), asking(kind, f"{protocol}://{HOST}:{port}", name) as client:
        large = np.arange(100_000, dtype=np.float32)
        assert (client.infer_sample(large)["y"] == large).all()
        proxy.cut_after(1000)
        with takes_about(0), pytest.raises(PyTritonClientInferenceServerError, match="broke before") as caught:
            client.infer_sample(large)
        assert caught.value.failure is Failure.LOST
        assert (client.infer_sample(large)["y"] == large).all()


def test_a_connection_that_broke_while_it_was_idle(kind, protocol, triton, name):
    bind_floats(triton, name, lambda requests: [{"y": each["x"]} for each in requests])
    server_port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
    with proxy_of(server_port) as (proxy, port), asking(kind, f"{protocol}://{HOST}:{port}", name) as client:
        client.infer_sample([1])
        proxy.cut()
        with contextlib.suppress(PyTritonClientInferenceServerError):  # the end may not have been noticed yet
            client.infer_sample([1])
        assert client.infer_sample([2])["y"] == [2]


def test_a_server_that_is_started_again(kind, protocol):
    def serve(**ports):
        triton = open_triton(**ports)
        bind_floats(triton, "floats", lambda requests: [{"y": each["x"]} for each in requests])
        triton.run()
        return triton

    first = serve()
    ports = {"http_port": first.config.http_port, "grpc_port": first.config.grpc_port}
    with asking(kind, url_of(first, protocol), "floats") as client:
        assert client.infer_sample([1])["y"] == [1]
        first.stop()
        for _ in range(3):
            with takes_about(0), pytest.raises(PyTritonClientInferenceServerError) as caught:
                client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE
        second = wait_until(lambda: _started(serve, ports), what="the ports are free")
        with second:
            assert client.infer_sample([2])["y"] == [2]


def _started(serve, ports):
    with contextlib.suppress(PyTritonRuntimeError):
        return serve(**ports)


def test_a_model_that_is_not_there(kind, url):
    with asking(kind, url, "no-such-model", init_timeout_s=TIMEOUT_S) as client:
        with takes_about(TIMEOUT_S), pytest.raises(PyTritonClientModelUnavailableError, match="no-such-model"):
            client.infer_sample([1])
        with pytest.raises(
            PyTritonClientModelUnavailableError, match=r"ready, but model 'no-such-model' was not within"
        ):
            client.wait_for_model(TIMEOUT_S)
    with (
        asking(kind, url, "no-such-model", ensure_model_is_ready=False) as client,
        takes_about(0),
        pytest.raises(PyTritonClientModelUnavailableError, match="is not found"),
    ):
        client.infer_sample([1])


def test_what_else_the_server_has_is_told_while_waiting(triton, name, caplog):
    bind_floats(triton, name, lambda requests: requests)
    with (
        ModelClient(url_of(triton, "http"), "no-such-model") as client,
        pytest.raises(PyTritonClientModelUnavailableError),
    ):
        client.wait_for_model(TIMEOUT_S)
    (record,) = caplog.records
    assert re.search(r"up to 0\.3 s: the server at http://.* has no model 'no-such-model'\. It has '", record.message)
