"""Gateways in front of servers that are added and removed."""

from __future__ import annotations

import contextlib
import gc
import json
import pathlib

import numpy as np
import pytest
import serving
from gateways import NUMBERS, gateway_of

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway import Gateway
from pytriton.gateway.remote import RemoteUpstream
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import TritonSecurityConfig

OPEN = TritonSecurityConfig(restricted_endpoints=[])


def start(stack, number):
    """A server with a model that returns its number, and another model of its own."""

    def who(requests):
        return [{"who": np.int32([number])} for _ in requests]

    @batch
    def count(x):
        for _ in range(int(x[0, 0])):
            yield {"who": np.full((len(x), 1), number, np.int32)}

    triton = stack.enter_context(serving.Triton(config=serving.free_config(), security_config=OPEN))
    says = [Tensor(name="who", dtype=np.int32, shape=(1,))]
    single = ModelConfig(batching=False)
    triton.bind("Who", who, NUMBERS, says, config=single)
    triton.bind(f"Only{number}", who, NUMBERS, says, config=single)
    triton.bind("Count", count, NUMBERS, says, config=ModelConfig(decoupled=True))
    triton.run()
    return triton


def address(triton):
    return f"127.0.0.1:{triton.config.grpc_port}"


@pytest.fixture(scope="module")
def tritons():
    """Three servers."""
    with contextlib.ExitStack() as stack:
        yield [start(stack, number) for number in range(3)]


class Addresses:
    def __init__(self, tritons):
        self._all = [address(triton) for triton in tritons]
        self.urls = []

    def __call__(self):
        if isinstance(self.urls, Exception):
            raise self.urls
        return self.urls

    def show(self, *numbers):
        self.urls = [self._all[number] for number in numbers]


@pytest.fixture
def addresses(tritons):
    """Their addresses, none of which is shown yet."""
    return Addresses(tritons)


@pytest.fixture
def gateway(addresses):
    with gateway_of(addresses) as gateway:
        yield gateway


def responding_servers(gateway, count=4):
    return {gateway.post("Who", {"x": [1]}).json()["who"] for _ in range(count)}


def test_requests_follow_the_addresses(addresses, gateway):
    for numbers in ((0,), (0, 1), (2,), (1, 2)):
        addresses.show(*numbers)
        assert responding_servers(gateway) == set(numbers)


def test_readiness_follows_the_addresses(addresses, gateway):
    assert gateway.get("/health/ready").status == 503
    addresses.show(1)
    assert gateway.get("/health/ready").status == 200
    assert responding_servers(gateway) == {1}
    addresses.show()
    assert gateway.get("/health/ready").status == 503
    assert gateway.get("/v1/models").status == 503
    addresses.urls = OSError("no network")
    assert gateway.get("/health/ready").status == 503


def test_models_and_statistics_follow_the_addresses(tritons, addresses, gateway):
    def models():
        return {model["id"] for model in gateway.get("/v1/models").json()["data"]} - {"Who", "Count"}

    def requests():
        return gateway.get("/v2/models/Who/stats").json()["model_stats"][0]["inference_count"]

    addresses.show(0)
    assert models() == {"Only0"}
    responding_servers(gateway)
    addresses.show(0, 2)
    assert models() == {"Only0", "Only2"}
    counts = [serving.statistics_of(triton, "Who")["inference_count"] for triton in tritons]
    assert requests() == counts[0] + counts[2]
    addresses.show(2)
    assert requests() == counts[2]
    assert gateway.post("Only2", {"x": [1]}).json() == {"who": 2}


def test_a_request_without_an_address_waits_briefly_and_gets_retry_after(addresses, gateway, monkeypatch):
    monkeypatch.setattr("pytriton.gateway.remote.DEFAULT_RESTART_TIMEOUT_S", 0.2)
    refused = gateway.post("Who", {"x": [1]})
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "no address at present" in refused.json()["error"]["message"]
    addresses.show(0)
    assert responding_servers(gateway) == {0}


def test_streams_follow_the_addresses(addresses, gateway):
    for number in (0, 1):
        addresses.show(number)
        lines = gateway.post("Count", {"x": [3]}).body.splitlines()
        assert [json.loads(line) for line in lines] == [{"who": number}] * 3


def test_a_sequence_stays_at_its_server_while_that_is_listed(addresses, gateway):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}

    def server_of(sequence):
        message = json.dumps(body | {"parameters": {"sequence_id": sequence}}).encode()
        response = gateway.send("POST", "/v2/models/Who/infer", message).json()
        return response["outputs"][0]["data"][0]

    sequences = [*range(1, 9), *"abcdefgh"]
    addresses.show(0, 1, 2)
    before = {sequence: server_of(sequence) for sequence in sequences}
    assert len(set(before.values())) > 1
    assert {sequence: server_of(sequence) for sequence in sequences} == before
    victim = before[1]
    addresses.show(*({0, 1, 2} - {victim}))
    after = {sequence: server_of(sequence) for sequence in sequences}
    assert all(after[sequence] == before[sequence] for sequence in sequences if before[sequence] != victim)
    assert victim not in after.values()


def test_many_changes_leave_nothing_behind(addresses, gateway):
    """Also the records of a model that is no longer requested, or that was not found."""

    def change(times):
        for number in range(times):
            addresses.show(number % 3)
            addresses.urls = [*addresses.urls, f"127.0.0.1:{number + 1}"]
            assert responding_servers(gateway, 1) == {number % 3}
            assert gateway.post("Missing", {"x": [1]}).status in (404, 503)

    addresses.show(0, 1, 2)
    gateway.post("Only1", {"x": [1]})
    change(5)
    addresses.show(0)
    responding_servers(gateway)
    before = resources()
    change(40)
    addresses.show(0)
    responding_servers(gateway)
    serving.wait_until(lambda: all(now <= then + 6 for now, then in zip(resources(), before, strict=True)))


def resources():
    gc.collect()
    return tuple(len(list(pathlib.Path("/proc/self", each).iterdir())) for each in ("fd", "task"))


@pytest.mark.parametrize("urls", [["http://localhost:8000"], "localhost:8001", None, ["local host"]])
def test_invalid_addresses(addresses, gateway, urls, caplog, monkeypatch):
    monkeypatch.setattr("pytriton.gateway.remote.DEFAULT_RESTART_TIMEOUT_S", 0.2)
    addresses.urls = urls
    assert gateway.get("/health/ready").status == 503
    assert gateway.post("Who", {"x": [1]}).status == 503
    addresses.show(0)
    assert responding_servers(gateway) == {0}
    addresses.urls = urls
    assert responding_servers(gateway) == {0}  # as before
    assert "Addresses() failed" in caplog.text


def test_creating_it_requests_nothing():
    lookups = []
    Gateway(lambda: lookups.append(1))
    assert not lookups
    with pytest.raises(PyTritonBadParameterError):
        RemoteUpstream([], 1.0)
