"""Values at the limits of their ranges, and clients that are used while they change."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from client_kinds import CLASSES, config_for, every_kind, every_kind_that_loads, known, open_client, url_of
from peers import HOST, proxy_of, refusing, silent
from serving import Background, bind_floats

from pytriton.client import (
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
    RetryPolicy,
)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@every_kind
def test_a_timeout_of_a_million_years(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    long = {"init_timeout_s": 3e13, "inference_timeout_s": 3e13}
    with open_client(kind, url_of(triton, protocol), name, **long) as client:
        client.wait_for_model(1e300)
        assert client.infer_sample([1])["y"] == [1]
        assert client.infer_sample([1], timeout_s=1e300)["y"] == [1]


@pytest.mark.parametrize("token", ["a\r\nb", "\u00fc", 7])
@every_kind
def test_an_invalid_token_is_not_shown_in_the_error(kind, protocol, token):
    with pytest.raises(PyTritonClientValueError, match="access_token cannot be sent") as caught:
        CLASSES[kind](f"{protocol}://localhost", "any", access_token=token)
    assert str(token) not in caught.value.message


@pytest.mark.parametrize("number", [0, -1, True, 1.0])
@pytest.mark.parametrize("kind", ["asyncio", "asyncio-decoupled"])
def test_an_invalid_number_of_connections(kind, number):
    with pytest.raises(PyTritonClientValueError, match=f"max_connections is {number}; give an integer from 1"):
        CLASSES[kind]("grpc://localhost", "any", max_connections=number)


@every_kind
def test_an_invalid_name(kind, protocol):
    with pytest.raises(PyTritonClientValueError, match="model_name is"):
        CLASSES[kind](f"{protocol}://localhost", "\ud800")


def test_requests_of_threads_while_another_one_reloads_the_model(triton, name, url):
    bind_floats(triton, name, echo)
    over = threading.Event()

    def send_request():
        while not over.is_set():
            with contextlib.suppress(PyTritonClientInferenceServerError):  # it is being loaded
                client.infer_sample([1])

    with ModelClient(url, name, init_timeout_s=30) as client:
        requested = [Background(send_request) for _ in range(4)]
        for _ in range(20):
            client.load_model()
        over.set()
        assert [each.finish().error for each in requested] == [None] * 4
        assert client.infer_sample([1])["y"] == [1]


def test_a_client_made_from_one_that_has_reloaded_the_model(triton, name, url):
    bind_floats(triton, name, echo)
    outdated = known("blocking")["model_config"]
    with ModelClient(url, name, model_config=outdated) as client:
        client.load_model()
        with ModelClient.from_existing_client(client) as other:
            assert other.model_config.model_name == name


@every_kind_that_loads
def test_attempts_and_the_first_response_together_stay_within_the_timeout(kind, protocol):
    with proxy_of(1) as (proxy, port):
        proxy.stand_in(refusing)
        retry = RetryPolicy(attempts=1000, pause_s=0.05, factor=1, resend_lost=True)
        url = f"{protocol}://{HOST}:{port}"
        with open_client(kind, url, "floats", inference_timeout_s=1, retry=retry, **known(kind)) as client:
            timer = threading.Timer(0.6, proxy.stand_in, [silent])
            timer.start()
            started = time.monotonic()
            with pytest.raises(PyTritonClientTimeoutError):
                client.infer_sample([1])
            assert 0.6 < time.monotonic() - started < 1.4
            timer.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"a": 1 << 63}}, "Parameter 'a' is 9223372036854775808, which does not fit into 64 bits"),
        ({"parameters": {"a": "\ud800"}}, r"Parameter 'a' is '\\ud800'"),
        ({"parameters": {"\ud800": 1}}, r"Parameter '\\ud800' is 1"),
        ({"request_id": "\ud800"}, r"request_id is '\\ud800'"),
        ({"priority": 1 << 32}, "priority is 4294967296; give 1"),
    ],
    ids=ascii,
)
@every_kind
def test_unsendable_values_are_named(kind, protocol, options, message):
    with (
        open_client(kind, f"{protocol}://{HOST}:1", "floats", **known(kind)) as client,
        pytest.raises(PyTritonClientValueError, match=message),
    ):
        client.infer_sample([1], **options)


@every_kind
def test_values_at_the_limits_are_sent(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name) as client:
        for number in (-(1 << 63), (1 << 63) - 1):
            assert client.infer_sample([1], parameters={"a": number}, priority=(1 << 32) - 1)["y"] == [1]
