"""Clients that wait for a model which a ready server does not have yet."""

from __future__ import annotations

import pytest
from client_kinds import config_for, every_kind, open_client, url_of
from serving import Background, bind_floats, wait_until

from pytriton.client import (
    DecoupledModelClient,
    ModelClient,
    PyTritonClientModelNotReadyError,
    PyTritonClientTimeoutError,
)
from pytriton.model_config import ModelConfig


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@every_kind
@pytest.mark.parametrize("version", [None, "2"], ids=["no version", "another version"])
def test_with_a_timeout_a_client_waits_for_a_model_that_is_bound_later(triton, name, kind, protocol, version, caplog):
    """Also for one of `RemoteTriton`."""
    url = url_of(triton, protocol)
    if version is not None:
        bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url, name, model_version=version, init_timeout_s=60) as client:
        response = Background(lambda: client.infer_sample([1]))
        wait_until(lambda: caplog.records)
        bind_floats(triton, name, echo, model_version=int(version or 1), config=config_for(kind))
        assert response.finish(60).result["y"] == [1]
    missing = f"'{name}' version 2; it has version 1 of it." if version else f"'{name}'; it has "
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(f"Still waiting, up to 60 s: The server at {url} is ready and has no model {missing}")


@pytest.mark.parametrize("client_class", [ModelClient, DecoupledModelClient])
def test_with_a_timeout_an_eager_client_waits_for_a_model_that_is_bound_later(triton, name, client_class, caplog):
    def create():
        return client_class(url_of(triton, "grpc"), name, lazy_init=False, init_timeout_s=60)

    client = Background(create)
    wait_until(lambda: caplog.records)
    bind_floats(triton, name, echo, config=ModelConfig(decoupled=client_class is DecoupledModelClient))
    with client.finish(60).result as created:
        assert created.model_config.model_name == name


@every_kind
def test_the_error_of_a_wait_names_the_missing_model(triton, name, kind, protocol):
    bind_floats(triton, name, echo)
    with (
        open_client(kind, url_of(triton, protocol), name.upper(), init_timeout_s=2) as client,
        pytest.raises(PyTritonClientModelNotReadyError) as caught,
    ):
        client.infer_sample([1])
    missing = f"is ready and has no model '{name.upper()}'; it has "
    assert missing in caught.value.message
    assert caught.value.message.endswith(f" Did you mean '{name}'? The client waited 2 s for it.")


def test_repeated_waits_find_a_model_that_is_bound_later(triton, protocol, name):
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
