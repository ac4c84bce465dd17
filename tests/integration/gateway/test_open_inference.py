"""The Open Inference Protocol, with tritonclient as its users have it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


@pytest.fixture(scope="module")
def client(gateway):
    with tritonclient.http.InferenceServerClient(gateway.url.removeprefix("http://")) as client:
        yield client


def input_of(name, array, binary=True):
    tensor = tritonclient.http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def infer(gateway, message, model="Double"):
    return gateway.send("POST", f"/v2/models/{model}/infer", json.dumps(message).encode())


def message_of(**changes):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]} | changes]}


@pytest.mark.parametrize("binary_out", [False, True])
@pytest.mark.parametrize("binary_in", [False, True])
def test_numbers(client, binary_in, binary_out):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    wanted = [tritonclient.http.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer("Double", [input_of("x", x, binary_in)], outputs=wanted, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("y"), x * 2)
    response = result.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("Double", "1", "seven")


@pytest.mark.parametrize("binary", [False, True])
def test_text(client, binary):
    who = np.array([["Zoë".encode()], [b"Bob"]], object)
    wanted = [tritonclient.http.InferRequestedOutput("text", binary_data=binary)]
    result = client.infer("Greet", [input_of("who", who, binary)], outputs=wanted)
    texts = [text if isinstance(text, bytes) else text.encode() for text in result.as_numpy("text").ravel()]
    assert texts == ["hello Zoë".encode(), b"hello Bob"]


def test_all_outputs_by_default(client):
    result = client.infer("Double", [input_of("x", np.ones((1, 1), np.float32))])
    assert result.as_numpy("y").tolist() == [[2]]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests(client, compression):
    x = np.ones((1, 100), np.float32)
    result = client.infer("Double", [input_of("x", x)], request_compression_algorithm=compression)
    np.testing.assert_array_equal(result.as_numpy("y"), x * 2)


def test_asyncio_client(gateway):
    import asyncio

    import tritonclient.http.aio

    async def main():
        async with tritonclient.http.aio.InferenceServerClient(gateway.url.removeprefix("http://")) as client:
            result = await client.infer("Double", [input_of("x", np.ones((1, 1), np.float32))])
            return result.as_numpy("y").tolist()

    assert asyncio.run(main()) == [[2]]


def test_pytritons_own_client(gateway):
    from pytriton.client import ModelClient

    with ModelClient(gateway.url, "Double") as client:
        assert client.infer_sample(np.array([1, 2], np.float32))["y"].tolist() == [2, 4]


def test_a_model_without_batching(client):
    result = client.infer("Single", [input_of("x", np.ones(3, np.float32))])
    assert result.as_numpy("y").tolist() == [2, 2, 2]


def test_server(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["version"]


def test_models(client):
    assert client.is_model_ready("Double")
    assert client.is_model_ready("Double", "1")
    assert not client.is_model_ready("Nobody")
    assert client.get_model_metadata("Double") == {
        "name": "Double",
        "versions": ["1"],
        "platform": "pytriton",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    }
    assert client.get_model_config("Double")["max_batch_size"] == 8
    assert client.get_inference_statistics("Double")["model_stats"][0]["name"] == "Double"
    assert len(client.get_inference_statistics()["model_stats"]) > 3
    assert {"name": "Double", "version": "1", "state": "READY"} in client.get_model_repository_index()


def test_errors(client):
    with pytest.raises(InferenceServerException, match="no such luck"):
        client.infer("Fail", [input_of("x", np.ones((1, 1), np.float32))])
    with pytest.raises(InferenceServerException, match="Nobody"):
        client.infer("Nobody", [input_of("x", np.ones((1, 1), np.float32))])
    with pytest.raises(InferenceServerException, match="/v1/models/Count"):
        client.infer("Count", [input_of("n", np.ones((1, 1), np.int32))])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "'inputs' of the request is missing"),
        ({"inputs": {}}, "'inputs' of the request is not a list"),
        (message_of() | {"id": "a\0b"}, "NUL"),
        (message_of() | {"parameters": {"sequence_id": "a\0b"}}, "sequence_id is"),
        (message_of() | {"parameters": {"a": "b\0"}}, "characters that cannot be sent"),
        (message_of(shape=[9, 1], parameters={"binary_data_size": 0}), "1 to 8"),
        ({"inputs": []}, "also needs 'x'"),
        (message_of(name="z"), "no input 'z'"),
        (message_of(datatype="INT32"), "is FP32"),
        (message_of(shape=[4611686018427387904, 1]), "too large"),
        (message_of(shape=[-1, 2]), "give a list of numbers"),
        (message_of(shape=[2]), "the model takes"),
        (message_of(shape=[9, 1], data=[1] * 9), "1 to 8"),
        (message_of(shape=[0, 1], data=[]), "1 to 8"),
        (message_of(data=["one", 2]), 'the value "one"'),
        (message_of(parameters={"binary_data_size": 8}), "0 bytes are left"),
        (message_of() | {"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "'classification'"),
        (message_of() | {"outputs": [{"name": "w"}]}, "no output 'w'"),
        (message_of() | {"parameters": {"shared_memory_region": "a"}}, "reserved"),
        (message_of(shape=[0, 1 << 62, 1 << 62], data=[]), "too large"),
        (message_of(shape=[10**30, 1]), "too large"),
        (message_of(shape=[1, 1 << 62], parameters={"binary_data_size": 0}), "too large"),
        (message_of(parameters={"binary_data_size": -1}), "is -1"),
        (message_of(parameters={"binary_data_size": 10**30}), "0 bytes are left"),
        (message_of(data=[[[]] * 1000] * 1000), "0 values"),
        (message_of() | {"parameters": {str(number): 1 for number in range(1001)}}, "1001 parameters"),
        (message_of() | {"parameters": {"sequence_id": "s" * 129}}, "128 characters"),
        (message_of() | {"parameters": {"sequence_id": 1 << 64}}, "sequence_id"),
        (message_of() | {"parameters": {"priority": 1 << 32}}, "priority"),
        (message_of() | {"id": "i" * 1001}, "1001 characters"),
    ],
)
def test_bad_requests(gateway, message, words):
    response = infer(gateway, message)
    assert response.status == 400
    assert words in response.json()["error"]


def test_other_endpoints_of_triton_do_not_exist(gateway):
    for path in ("/v2/repository/models/Double/unload", "/v2/systemsharedmemory/status", "/v2/trace/setting"):
        assert gateway.send("POST", path, b"{}").status in (404, 405)
    assert gateway.get("/v2/models/Double").status == 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "data"]), inner),
    max_leaves=10,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "id": anything,
        "parameters": st.dictionaries(st.sampled_from(["priority", "timeout", "sequence_id", "a"]), anything)
        | anything,
        "outputs": st.lists(st.fixed_dictionaries({"name": st.just("y") | anything}, optional={"parameters": anything}))
        | anything,
        "inputs": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.just("x") | anything,
                    "datatype": st.just("FP32") | anything,
                    "shape": st.just([1, 2]) | anything,
                    "data": st.just([1, 2]) | anything,
                },
                optional={"parameters": st.dictionaries(st.just("binary_data_size"), anything) | anything},
            ),
            max_size=2,
        )
        | anything,
    },
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(message=requests | anything, header=st.none() | st.integers(-1, 300), tail=st.binary(max_size=9))
def test_no_request_causes_an_internal_error(gateway, message, header, tail):
    headers = {} if header is None else {"inference_header_content_length": str(header)}
    body = json.dumps(message).encode() + tail
    assert gateway.send("POST", "/v2/models/Double/infer", body, **headers).status in (200, 400)
