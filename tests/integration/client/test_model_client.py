"""The life of a client of a healthy server."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pickle
import re
import threading
import time

import numpy as np
import pytest
from client_kinds import (
    CLASSES,
    STREAM_KINDS,
    bind_add_sub,
    config_for,
    every_kind,
    every_kind_that_loads,
    open_client,
    open_client_with,
    url_of,
)
from serving import (
    HOST,
    NO_BATCHING,
    Background,
    at_once,
    bind_floats,
    held_model,
    request_json,
    wait_until,
)

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInputError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
    TLSConfig,
)
from pytriton.model_config import ModelConfig


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@every_kind
def test_an_error_of_the_model(triton, name, kind, url):
    def fail(requests):
        raise ValueError("no such luck")

    bind_floats(triton, name, fail, config=config_for(kind))
    with open_client(kind, url, name) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match=r"responded: .*ValueError: no such") as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.REFUSED


@every_kind
def test_the_configuration(client, name, kind):
    config = client.model_config

    decoupled = kind in STREAM_KINDS
    assert (config.model_name, config.max_batch_size, config.batching, config.decoupled) == (name, 4, True, decoupled)
    assert list(map(str, config.inputs)) == ["'a': FP32 (-1,)", "'b': FP32 (-1,)"]
    assert config.outputs[1].dtype == np.float32


def test_whether_batches_are_supported(triton, name, url):
    bind_floats(triton, name, echo, config=NO_BATCHING)
    with ModelClient(url, name) as client:
        assert not client.is_batching_supported


@every_kind
def test_a_version(triton, name, kind, url):
    for version in (1, 2):
        bind_floats(
            triton,
            name,
            lambda requests, by=version: [{"y": by * each["x"]} for each in requests],
            model_version=version,
            config=config_for(kind),
        )
    for wanted, factor in (("1", 1), (2, 2), ("2", 2), (None, 2), ("<latest>", 2)):
        with open_client(kind, url, name, model_version=wanted) as client:
            assert client.infer_sample([1])["y"] == [factor]
    with (
        open_client(kind, url, name, model_version="3", init_timeout_s=0.4) as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="version 3"),
    ):
        client.infer_sample([1])


def test_waiting_for_the_server_and_for_the_model(triton, name, url):
    with ModelClient(url, name) as client:
        client.wait_for_server(10)
        bound = threading.Timer(0.3, lambda: bind_floats(triton, name, echo))
        bound.start()
        client.wait_for_model(30)
        assert client.infer_sample([1])["y"] == [1]
        bound.join()


def test_other_models_of_the_server_are_named_while_waiting(triton, name, url, caplog):
    bind_floats(triton, name, echo)
    with ModelClient(url, "no-such-model") as client, pytest.raises(PyTritonClientModelUnavailableError):
        client.wait_for_model(0.4)
    (record,) = caplog.records
    assert re.search(r"up to 0\.4 s: The server at .* has no model 'no-such-model'; it has '", record.message)


def test_a_lazy_client_connects_when_it_is_used(triton, name, url):
    client = ModelClient(url, name)
    bind_floats(triton, name, echo)
    assert client.infer_sample([1])["y"] == [1]
    client.close()


@pytest.mark.parametrize("client_class", [ModelClient, DecoupledModelClient])
def test_an_eager_client_connects_when_it_is_made(triton, client_class):
    with pytest.raises(PyTritonClientModelUnavailableError):
        client_class(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4)


@pytest.mark.parametrize("client_class", [AsyncioModelClient, AsyncioDecoupledModelClient])
def test_an_eager_asyncio_client_connects_when_it_is_entered(triton, client_class):
    async def enter():
        async with client_class(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4):
            raise AssertionError("it was entered")

    with pytest.raises(PyTritonClientModelUnavailableError):
        asyncio.run(enter())


@every_kind
def test_a_client_with_the_configuration_does_not_request_it(triton, name, kind, url):
    bind_add_sub(triton, name, config=config_for(kind))
    config = ModelClient(url, name).model_config
    with open_client(kind, url, name, model_config=config, ensure_model_is_ready=False) as client:
        assert client.model_config is config
        assert client.infer_sample([1], [2])["add"] == [3]


@pytest.mark.parametrize(
    ("kind", "other_kind"),
    [*itertools.product(("blocking", "asyncio"), repeat=2), *itertools.product(STREAM_KINDS, repeat=2)],
)
def test_a_client_made_from_another(triton, name, kind, other_kind):
    bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url_of(triton, "grpc"), name, convert_dtypes=True) as client:
        assert client.infer_sample(np.int8([1]))["y"] == [1]
        made = CLASSES[other_kind].from_existing_client(client.client)
        assert type(made) is CLASSES[other_kind]
        with open_client_with(other_kind, made) as other:
            assert other.model_config is client.model_config
            assert other.infer_sample(np.int8([2]))["y"] == [2]
        assert client.infer_sample(np.int8([3]))["y"] == [3]


@every_kind
@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_a_server_is_found_by_its_address_and_by_its_name(triton, name, kind, protocol, host):
    bind_floats(triton, name, echo, config=config_for(kind))
    url = url_of(triton, protocol).replace(HOST, host)
    for form in {url, f"{url}/", url.removeprefix("http://")}:
        with open_client(kind, form, name) as client:
            assert client.infer_sample([1])["y"] == [1]


@every_kind
def test_a_closed_client(kind, url):
    with open_client(kind, url, "any") as client:
        client.close()
        client.close()
        for use in (
            lambda: client.infer_sample([1]),
            lambda: client.infer_batch([[1]]),
            lambda: client.wait_for_model(1),
            lambda: client.model_config,
        ):
            with pytest.raises(PyTritonClientClosedError, match="closed"):
                use()


@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, DecoupledModelClient])
def test_a_context_manager_closes(triton, name, client_class):
    bind_floats(triton, name, echo, config=ModelConfig(decoupled=client_class is DecoupledModelClient))
    with client_class(url_of(triton, "grpc"), name) as client:
        client.infer_sample([1])
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample([1])
    with pytest.raises(PyTritonClientClosedError), client:
        pass


def test_closing_while_another_thread_waits(triton, name):
    entered, gate = held_model(triton, name)
    client = ModelClient(url_of(triton, "grpc"), name)
    open_client = Background(lambda: client.infer_sample([1]))
    assert entered.wait(30)
    client.close()
    assert isinstance(open_client.finish().error, PyTritonClientClosedError)
    gate.set()


@pytest.mark.parametrize("lazy_init", [True, False])
def test_many_threads_share_a_client(triton, name, url, lazy_init):
    bind_floats(triton, name, echo)
    with ModelClient(url, name, lazy_init=lazy_init) as client:
        responses = at_once(16, lambda number: [client.infer_sample([number])["y"][0] for _ in range(10)])
    assert responses == [[number] * 10 for number in range(16)]


def test_unloading_and_loading(triton, name, url):
    bind_floats(triton, name, echo)
    with ModelClient(url, name, init_timeout_s=10) as client:
        config = client.model_config
        client.unload_model()
        wait_until(lambda: not is_ready(client))
        client.load_model()
        assert client.model_config == config
        assert client.infer_sample([1])["y"] == [1]


@every_kind_that_loads
def test_loading_with_another_configuration(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    _, config = request_json(triton, "GET", f"/v2/models/{name}/config")
    with open_client(kind, url_of(triton, protocol), name) as client:
        assert client.model_config.max_batch_size == 4
        for number in (5, 6):
            client.load_model(config=json.dumps({**config, "max_batch_size": number}))
            assert client.model_config.max_batch_size == number
            assert len(client.infer_batch(np.zeros((number, 1), np.float32))["y"]) == number
        for wrong in ("{", "[]", config, 5):
            with pytest.raises(PyTritonClientInputError, match=r"config is .*; give the model's configuration as JSON"):
                client.load_model(config=wrong)
        for files in ({"1/weights": b"1"}, {"file:1/weights": "1"}):
            with pytest.raises(PyTritonClientInputError, match="give contents as bytes, by names such as 'file:1/"):
                client.load_model(files=files)
        # Given files replace all existing ones, such as the one that the library writes.
        with pytest.raises(PyTritonClientInferenceServerError, match=r"cannot read .*/1/worker"):
            client.load_model(config=json.dumps(config), files={"file:1/weights": b"1, 2, 3"})


def is_ready(client):
    try:
        client.wait_for_model(0.05)
    except (PyTritonClientModelUnavailableError, PyTritonClientTimeoutError):
        return False
    return True


def test_threads_that_connect_together_wait_no_longer_than_one(protocol):
    with ModelClient(f"{protocol}://{HOST}:1", "any", init_timeout_s=1) as client:
        started = time.monotonic()
        requested = [Background(lambda: client.infer_sample([1])) for _ in range(3)]
        wait_until(lambda: all(not each.is_alive() for each in requested))
        assert all(each.error is not None for each in requested)
        assert time.monotonic() - started < 1.8


@pytest.mark.parametrize(
    "url", ["", "ftp://localhost", "localhost:0", "localhost:99999", "localhost:a", "http://", "grpc://a/b", "a b", 7]
)
@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, AsyncioModelClient])
def test_an_invalid_url(client_class, url):
    with pytest.raises(PyTritonClientInvalidUrlError, match="is not a valid URL of a server"):
        client_class(url, "any")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_name": ""}, "model_name is ''"),
        ({"model_version": "latest"}, "model_version is 'latest'"),
        ({"init_timeout_s": 0}, "init_timeout_s is 0"),
        ({"inference_timeout_s": -1.0}, "inference_timeout_s is -1.0"),
        ({"inference_timeout_s": "1"}, "inference_timeout_s is '1'"),
        ({"url": []}, "The list of URLs is empty"),
        ({"url": "Double", "model_name": "http://localhost:8000"}, "which is a URL; give the URL first"),
        ({"url": "Double", "model_name": "localhost:8000"}, "which is a URL; give the URL first"),
        ({"tls": "ca.pem"}, "tls is 'ca.pem'; give a TLSConfig"),
        ({"retry": 3}, "retry is 3; give a RetryPolicy"),
        ({"model_config": {"name": "any"}}, "model_config is {'name': 'any'}; give a TritonModelConfig"),
        ({"url": "grpcs://localhost", "tls": TLSConfig(verify=False)}, "is only for https://"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, AsyncioModelClient])
def test_invalid_arguments(client_class, arguments, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        client_class(**{"url": "localhost", "model_name": "any", **arguments})


@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, AsyncioModelClient])
def test_a_client_cannot_be_copied_or_pickled(client_class):
    client = client_class("localhost", "any")
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=rf"{client_class.__name__} cannot be copied, or sent to another process"):
            copy_of(client)


def test_a_client_is_made_from_one_of_any_kind(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name) as futures, ModelClient.from_existing_client(futures) as client:
        assert client.infer_sample([1])["y"] == [1]
    with pytest.raises(PyTritonClientValueError, match="existing_client is 'localhost'; give a client"):
        ModelClient.from_existing_client("localhost")
