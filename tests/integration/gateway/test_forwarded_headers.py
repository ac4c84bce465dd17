"""Headers that become parameters of the request to the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import serving
from gateways import gateway_of

from pytriton.gateway import OpenAICompletion, OpenAIEmbeddings
from pytriton.model_config import ModelConfig, Tensor

FORWARDED = ("X-Tenant", "x-plan")
TEXT = [Tensor(name="text", dtype=bytes, shape=(1,))]
NUMBERS = [Tensor(name="numbers", dtype=np.float32, shape=(1,))]


def parameters_of(request):
    return np.array([json.dumps(dict(request.parameters), sort_keys=True).encode()], object)


def tell(requests):
    """Returns the parameters that each request has."""
    return [{"text": parameters_of(request)} for request in requests]


def tell_twice(requests):
    """Streams them."""
    for _ in range(2):
        yield tell(requests)


def embed(requests):
    """Returns how many there are."""
    return [{"numbers": np.array([len(request.parameters)], np.float32)} for request in requests]


@pytest.fixture(scope="module")
def triton():
    with serving.running_triton() as triton:
        single = ModelConfig(batching=False)
        triton.bind("Tell", tell, TEXT, TEXT, config=single)
        triton.bind("TellTwice", tell_twice, TEXT, TEXT, config=ModelConfig(batching=False, decoupled=True))
        triton.bind("Embed", embed, TEXT, NUMBERS, config=single)
        triton.run()
        yield triton


@pytest.fixture(scope="module")
def gateway(triton):
    openai = [
        OpenAICompletion("TellTwice", name="completion", prompt="text"),
        OpenAIEmbeddings("Embed", name="embeddings", output="numbers"),
    ]
    with gateway_of(triton, forwarded_headers=FORWARDED, openai=openai) as client:
        yield client


SAMPLE = {"text": "a"}
MESSAGE = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}


def infer(gateway, message=MESSAGE, **headers):
    return gateway.send("POST", "/v2/models/Tell/infer", json.dumps(message).encode(), **headers)


def test_a_function_finds_them_under_their_names_in_lower_case(gateway):
    response = gateway.post("Tell", SAMPLE, x_tenant="blue", X_Plan="a b", x_other="no")

    assert json.loads(response.json()["text"]) == {"x-plan": "a b", "x-tenant": "blue"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin1"])
def test_they_may_have_letters_beyond_ascii(gateway, encoding):
    response = gateway.post("Tell", SAMPLE, x_tenant="Zo\u00eb".encode(encoding))

    assert json.loads(response.json()["text"]) == {"x-tenant": "Zo\u00eb"}


def test_those_that_a_request_lacks_are_missing(gateway):
    assert json.loads(gateway.post("Tell", SAMPLE, x_plan="").json()["text"]) == {"x-plan": ""}
    assert json.loads(gateway.post("Tell", SAMPLE).json()["text"]) == {}


def test_each_sample_of_a_request_has_them(gateway):
    told = gateway.post("Tell", [SAMPLE, SAMPLE], x_tenant="blue").json()

    assert [json.loads(each["text"]) for each in told] == [{"x-tenant": "blue"}] * 2


def test_streams_have_them(gateway):
    lines = gateway.post("TellTwice", SAMPLE, x_tenant="blue").body.splitlines()

    assert [json.loads(json.loads(line)["text"]) for line in lines] == [{"x-tenant": "blue"}] * 2


def test_requests_of_the_standard_protocol_have_them_beside_their_parameters(gateway):
    response = infer(gateway, MESSAGE | {"parameters": {"factor": 3}}, x_tenant="blue").json()

    assert json.loads(response["outputs"][0]["data"][0]) == {"factor": 3, "x-tenant": "blue"}


@pytest.mark.parametrize("headers", [{}, {"x_tenant": "blue"}])
@pytest.mark.parametrize("name", ["x-tenant", "X-Tenant"])
def test_clients_cannot_set_them_by_a_parameter(gateway, name, headers):
    response = infer(gateway, MESSAGE | {"parameters": {name: "red"}}, **headers)

    assert response.status == 400
    assert response.json()["error"] == f"Parameter '{name}' is taken from the header of that name."


@pytest.mark.parametrize("name", ["x-tenant\0", "x-tenant\0more", "x-tenant\n"])
def test_nor_by_one_whose_name_ends_early(gateway, name):
    response = infer(gateway, MESSAGE | {"parameters": {name: "red"}})

    assert response.status == 400
    assert "has characters that cannot be sent" in response.json()["error"]


def test_requests_of_openai_have_them(gateway):
    def post(path, **fields):
        return gateway.send("POST", path, json.dumps(fields).encode(), x_tenant="blue").json()

    completion = post("/v1/completions", model="completion", prompt="a")
    embeddings = post("/v1/embeddings", model="embeddings", input="a")

    assert completion["choices"][0]["text"] == '{"x-tenant": "blue"}' * 2
    assert embeddings["data"][0]["embedding"] == [1]


def test_without_the_setting_no_header_reaches_the_model(triton):
    with gateway_of(triton) as gateway:
        assert json.loads(gateway.post("Tell", SAMPLE, x_tenant="blue").json()["text"]) == {}


def test_servers_elsewhere_get_them_too(triton):
    with gateway_of([f"localhost:{triton.config.grpc_port}"], forwarded_headers=FORWARDED) as gateway:
        response = gateway.post("Tell", SAMPLE, x_tenant="blue")

    assert json.loads(response.json()["text"]) == {"x-tenant": "blue"}
