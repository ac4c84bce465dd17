"""Gateways in front of remote servers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time

import numpy as np
import pytest
import serving
import tritonclient.grpc
import tritonclient.http
from gateways import DOUBLED, NUMBERS, Client, bind_all, gateway_of

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway import Gateway, GatewayConfig, OpenAICompletion
from pytriton.gateway.server import GatewayServer
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import TritonSecurityConfig

EVENTS = "text/event-stream"
OPEN = TritonSecurityConfig(restricted_endpoints=[])


def who(name):
    def infer(requests):
        return [{"name": np.array([name.encode()], object)} for _ in requests]

    return infer


def bind_name(triton, name):
    config = ModelConfig(batching=False)
    triton.bind("Who", who(name), NUMBERS, [Tensor(name="name", dtype=bytes, shape=(1,))], config=config)


def address(triton):
    return f"127.0.0.1:{triton.config.grpc_port}"


@pytest.fixture(scope="module")
def pair():
    """Two servers."""
    with contextlib.ExitStack() as stack:
        tritons = []
        for name in ("one", "two"):
            triton = stack.enter_context(serving.Triton(config=serving.free_config(), security_config=OPEN))
            bind_all(triton)
            bind_name(triton, name)
            triton.run()
            tritons.append(triton)
        yield tritons


@pytest.fixture(scope="module")
def gateway(pair):
    with gateway_of([address(triton) for triton in pair]) as client:
        yield client


def test_samples_and_batches(gateway):
    assert gateway.post("Double", {"x": [1, 2]}).json() == {"y": [2, 4]}
    assert gateway.post("Double", [{"x": [1]}, {"x": [2]}]).json() == [{"y": [2]}, {"y": [4]}]
    assert gateway.post("Double", {"x": [[i] for i in range(20)]}).json() == {"y": [[2 * i] for i in range(20)]}
    assert gateway.post("Greet", {"who": "Zoë"}).json() == {"text": "hello Zoë"}


def test_errors(gateway):
    refused = gateway.post("Double", {"z": [1]})
    assert (refused.status, refused.json()["error"]["field"]) == (422, "z")
    failed = gateway.post("Fail", {"x": [1]})
    assert (failed.status, "no such luck" in failed.json()["error"]["message"]) == (500, True)
    assert gateway.post("Missing", {"x": [1]}).status == 404


@pytest.mark.parametrize("name", ["Double%00", "Double%00more", "Double%0A"])
def test_a_name_with_control_characters_is_no_model(gateway, name):
    assert gateway.get(f"/v1/models/{name}").status == 404
    assert gateway.post(name, {"x": [1]}).status == 404
    assert gateway.get(f"/v2/models/{name}").status == 404


def test_requests_go_to_the_servers_in_turn(gateway):
    names = [gateway.post("Who", {"x": [1]}).json()["name"] for _ in range(10)]
    assert sorted(names) == ["one"] * 5 + ["two"] * 5


def test_streams(gateway):
    lines = gateway.post("Count", {"n": 3}).body.splitlines()
    assert [json.loads(line) for line in lines] == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert gateway.post("Count", {"n": 2}, accept=EVENTS).body.count(b"data: ") == 3
    assert b"that is a hundred" in gateway.post("Count", {"n": 101}, accept=EVENTS).body
    assert gateway.post("Double", {"x": [1]}, accept=EVENTS).body.startswith(b'data: {"y":[2.0]}')


def test_lists_and_descriptions(gateway):
    listed = gateway.get("/v1/models").json()["data"]
    assert {"Double", "Who", "Count"} <= {model["id"] for model in listed}
    assert len({model["id"] for model in listed}) == len(listed)
    document = gateway.get("/openapi.json").json()
    assert "/v1/models/Double" in document["paths"]
    assert gateway.get("/health/ready").json() == {"ready": True}


def test_statistics_are_summed_over_the_servers(pair, gateway):
    def counts():
        found = gateway.get("/v2/models/Who/stats").json()["model_stats"]
        assert [(each["name"], each["version"]) for each in found] == [("Who", "1")]
        return found[0]["inference_count"]

    before = counts()
    for _ in range(4):
        gateway.post("Who", {"x": [1]})
    serving.wait_until(lambda: counts() >= before + 4)  # Triton counts a request after its response
    serving.wait_until(
        lambda: counts() == sum(serving.statistics_of(triton, "Who")["inference_count"] for triton in pair)
    )
    status = gateway.get("/status").json()
    (model,) = [model for model in status["models"] if model["name"] == "Who"]
    assert model["requests"] >= 4
    assert status["server"]["version"]


def test_the_open_inference_protocol(gateway):
    with tritonclient.http.InferenceServerClient(gateway.url.removeprefix("http://")) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("Double")
        assert client.get_server_metadata()["version"]
        tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.float32([[1, 2]]))
        result = client.infer("Double", [tensor], request_id="seven", parameters={"a": "b"})
        assert result.as_numpy("y").tolist() == [[2, 4]]
        response = result.get_response()
        assert (response["model_version"], response["id"]) == ("1", "seven")
        assert client.get_model_config("Double")["max_batch_size"] == 8


def test_a_sequence_stays_at_one_server(gateway):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    for sequence in (1, 2, "three"):
        message = json.dumps(body | {"parameters": {"sequence_id": sequence}}).encode()
        responses = [gateway.send("POST", "/v2/models/Who/infer", message).json() for _ in range(6)]
        assert len({response["outputs"][0]["data"][0] for response in responses}) == 1


def test_text_models(pair):
    declared = OpenAICompletion("Greet", name="greeter", prompt="who")
    with gateway_of([address(triton) for triton in pair], openai=[declared]) as gateway:
        body = json.dumps({"model": "greeter", "prompt": "Bob"}).encode()
        response = gateway.send("POST", "/v1/completions", body, content_type="application/json")
        assert response.json()["choices"][0]["text"] == "hello Bob"


def test_another_server_takes_over(pair):
    with serving.Triton(config=serving.free_config(), security_config=OPEN) as third:
        bind_name(third, "three")
        third.run()
        with gateway_of([address(pair[0]), address(third)]) as gateway:
            names = {gateway.post("Who", {"x": [1]}).json()["name"] for _ in range(4)}
            assert names == {"one", "three"}
            third.stop()
            responses = [gateway.post("Who", {"x": [1]}) for _ in range(6)]
            assert [response.json() for response in responses] == [{"name": "one"}] * 6
            assert gateway.get("/health/ready").status == 200


def test_a_server_that_hangs_does_not_delay_the_readiness(pair):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        with gateway_of([hanging, address(pair[0])]) as client:
            for _ in range(4):
                start = time.monotonic()
                assert client.get("/health/ready").status == 200
                assert time.monotonic() - start < 2.5  # half of what a probe may take


def test_a_server_that_hangs_delays_lists_once(pair, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        with gateway_of([hanging, address(pair[0])]) as client:
            serving.wait_until(lambda: f"grpc://{hanging}" in caplog.text)
            start = time.monotonic()
            assert client.get("/v1/models").status == 200
            assert time.monotonic() - start < 2.5
            start = time.monotonic()
            assert client.get("/openapi.json").status == 200
            assert client.post("Double", {"x": [1]}).status == 200
            assert time.monotonic() - start < 2.5


def test_the_log_names_a_server_that_cannot_be_reached_and_says_when_it_responds(caplog):
    triton = serving.running_triton(grpc_port=serving.free_ports(1)[0])
    missing = address(triton)
    with gateway_of([missing]) as client:
        serving.wait_until(lambda: f"No server can be reached at grpc://{missing}" in caplog.text)
        for _ in range(3):
            assert client.get("/health/ready").status == 503
        assert caplog.text.count(f"grpc://{missing}") == 1
        with triton:
            triton.run()
            serving.wait_until(lambda: client.get("/health/ready").status == 200)
            assert f"The server at grpc://{missing} responds again." in caplog.text


def test_no_server_at_all():
    with gateway_of(["127.0.0.1:1"], request_timeout_s=2) as gateway:
        response = gateway.post("Double", {"x": [1]})
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert gateway.get("/health/ready").status == 503
        assert gateway.get("/v1/models").status == 503


def test_a_model_reloaded_with_another_configuration(pair, monkeypatch):
    monkeypatch.setattr("pytriton.gateway.remote._REFRESH_S", 0.0)
    triton = pair[0]
    config = ModelConfig(max_batch_size=8, batcher=DynamicBatcher())
    triton.bind("Changes", lambda requests: requests, NUMBERS, NUMBERS, config=config)
    with gateway_of(address(triton)) as gateway:
        assert gateway.post("Changes", {"x": [1]}).json() == {"x": [1]}
        triton.bind("Changes", lambda requests: requests, DOUBLED, DOUBLED, config=config)
        serving.wait_until(lambda: gateway.post("Changes", {"y": [1]}).status == 200)


def test_lists_require_the_token_of_the_servers():
    with serving.running_triton() as triton:
        bind_name(triton, "one")
        triton.run()
        with gateway_of(address(triton)) as gateway:
            refused = gateway.get("/v1/models")
            assert (refused.status, "token" in refused.json()["error"]["message"]) == (502, True)
        config = GatewayConfig(port=0)
        server = GatewayServer(Gateway(address(triton), config, access_token=triton.get_access_token()), config)
        server.start()
        try:
            assert [model["id"] for model in Client(server.url).get("/v1/models").json()["data"]] == ["Who"]
        finally:
            server.stop(5)


@pytest.mark.parametrize("urls", [[], ["http://localhost:8000"], ["local host"], "grpc://x/path"])
def test_invalid_addresses(urls):
    with pytest.raises(PyTritonBadParameterError):
        Gateway(urls)


COMMAND = """
import sys
from pytriton.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_command_serves_until_it_is_stopped(pair, tmp_path):
    arguments = ["gateway", *map(address, pair), "--port", "0", "--max-samples", "5"]
    with serving.Script(tmp_path, COMMAND, *arguments) as script:
        url = script.line().removeprefix("The gateway listens at ").rstrip(".")
        gateway = Client(url)
        assert gateway.post("Double", {"x": [1, 2]}).json() == {"y": [2, 4]}
        assert gateway.post("Double", [{"x": [1]}] * 6).status == 413
        script.signal(signal.SIGTERM)
        assert script.wait() == 0


def test_the_command_creates_keys_and_requires_them(pair, tmp_path):
    keys = tmp_path / "keys.json"
    with serving.Script(
        tmp_path,
        COMMAND,
        "gateway",
        "--api-keys",
        keys,
        "--create-key",
        "alice",
        "--model",
        "Double",
        "--max-requests",
        "5",
    ) as script:
        key = script.line()
        assert script.wait() == 0
    assert json.loads(keys.read_text())["keys"][0]["max_requests"] == 5
    assert key not in keys.read_text()
    with serving.Script(tmp_path, COMMAND, "gateway", address(pair[0]), "--port", "0", "--api-keys", keys) as script:
        gateway = Client(script.line().removeprefix("The gateway listens at ").rstrip("."))
        assert gateway.post("Double", {"x": [1]}).status == 401
        assert gateway.post("Double", {"x": [1]}, x_api_key=key).status == 200
        assert gateway.post("Single", {"x": [1]}, x_api_key=key).status == 403


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Give the address"),
        (["--create-key", "a"], "--api-keys FILE"),
        (["--create-key", "a", "--api-keys", "none.json", "h"], "serves nothing: leave out h."),
        (["--create-key", "a", "--api-keys", "none.json", "--max-requests", "0"], "max_requests is 0"),
        (["h", "--rate", "3"], "--rate is for a new key; use it with --create-key NAME."),
        (["h", "--model", "Double"], "--model is for a new key; use it with --create-key NAME."),
        (["h", "--cors-origins", "example.com"], "such as 'https://example.com'"),
        (["h", "--port", "x"], "--port is 'x'"),
        (["http://h"], "over gRPC"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, arguments, says):
    with serving.Script(tmp_path, COMMAND, "gateway", *arguments) as script:
        assert script.wait() == 1
        assert says in script.stderr
