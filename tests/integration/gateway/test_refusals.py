"""Refused requests: a gateway responds with the very status that a model gave, whichever way it reaches the server."""

from __future__ import annotations

import json

import pytest
import serving
from gateways import DOUBLED, EVENTS, NUMBERS, events_of, gateway_of

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.gateway import OpenAICompletion
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import TritonSecurityConfig

STATUSES = {
    "invalid_argument": 400,
    "not_found": 404,
    "already_exists": 409,
    "conflict": 409,
    "resource_exhausted": 429,
    "too_many_requests": 429,
    "unavailable": 503,
}
BOTH = pytest.mark.parametrize("model", ["Refuse", "RefuseStream"])
STATUS = [Tensor(name="status", dtype=bytes, shape=(1,))]


@batch
def refuse(status):
    raise PyTritonInvalidRequestError("that is so", status[0, 0].decode())


@batch
def refuse_stream(status):
    raise PyTritonInvalidRequestError("that is so", status[0, 0].decode())
    yield


@batch
def refuse_within(x):
    yield {"y": x}
    raise PyTritonInvalidRequestError("that is so", "conflict")


@pytest.fixture(scope="module")
def served():
    with serving.Triton(
        config=serving.free_config(), security_config=TritonSecurityConfig(restricted_endpoints=[])
    ) as triton:
        batching, streaming = ModelConfig(max_batch_size=8), ModelConfig(max_batch_size=8, decoupled=True)
        text = [Tensor(name="text", dtype=bytes, shape=(1,))]
        triton.bind("Refuse", refuse, STATUS, text, config=batching)
        triton.bind("RefuseStream", refuse_stream, STATUS, text, config=streaming)
        triton.bind("RefuseWithin", refuse_within, NUMBERS, DOUBLED, config=streaming)
        triton.run()
        yield triton


@pytest.fixture(scope="module", params=["in the same process", "elsewhere"])
def gateway(served, request):
    there = request.param == "elsewhere"
    address = f"{serving.HOST}:{served.config.grpc_port}"
    declared = [OpenAICompletion("Refuse", prompt="status", output="text")]
    with gateway_of(address if there else served, openai=declared) as client:
        yield client


@BOTH
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_of_a_refusal(gateway, model, status):
    response = gateway.post(model, {"status": status})
    assert (response.status, response.json()) == (STATUSES[status], {"error": {"message": "that is so"}})
    assert (response.headers["retry-after"] is not None) is (response.status in (429, 503))


@BOTH
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_before_a_stream_of_events(gateway, model, status):
    assert gateway.post(model, {"status": status}, accept=EVENTS).status == STATUSES[status]


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_in_the_open_inference_protocol(gateway, status):
    inputs = [{"name": "status", "shape": [1, 1], "datatype": "BYTES", "data": [status]}]
    response = gateway.send("POST", "/v2/models/Refuse/infer", json.dumps({"inputs": inputs}))
    assert (response.status, response.json()) == (STATUSES[status], {"error": "that is so"})


@pytest.mark.parametrize("status", STATUSES)
def test_the_status_in_the_api_of_openai(gateway, status):
    body = json.dumps({"model": "Refuse", "prompt": status})
    response = gateway.send("POST", "/v1/completions", body, content_type="application/json")
    assert (response.status, response.json()["error"]["message"]) == (STATUSES[status], "that is so")


def test_a_refusal_within_a_stream(gateway):
    events = list(events_of(gateway.post("RefuseWithin", {"x": [1]}, accept=EVENTS).body))
    assert events[:2] == [("message", {"y": [1]}), ("error", {"error": {"message": "that is so"}})]
