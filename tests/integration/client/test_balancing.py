"""Clients with several servers."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import socket
import time

import numpy as np
import psutil
import pytest
from client_kinds import STREAM_KINDS, config_for, open_client, open_triton, url_of
from peers import HOST, listening, powerless, proxy_of, refusing, silent
from serving import bind_floats, held_model, wait_until

from pytriton.client import (
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy

NOBODY = {"http": f"{HOST}:1", "grpc": f"grpc://{HOST}:1"}


def bind_constant(triton, name, number, **arguments):
    bind_floats(triton, name, lambda requests: [{"y": 0 * each["x"] + number} for each in requests], **arguments)


@pytest.fixture(scope="module")
def tritons():
    """Three servers."""
    with open_triton() as first, open_triton() as second, open_triton() as third:
        for triton in (first, second, third):
            triton.run()
        yield first, second, third


@pytest.fixture
def urls(tritons, protocol, name):
    """Their URLs; each has a model that returns the server's number."""
    for number, triton in enumerate(tritons):
        bind_constant(triton, name, number)
    return [url_of(triton, protocol) for triton in tritons]


def responding_servers(client, count):
    return collections.Counter(int(client.infer_sample([1])["y"][0]) for _ in range(count))


def test_requests_go_to_the_servers_in_turn(kind, urls, name):
    with open_client(kind, urls, name) as client:
        assert responding_servers(client, 30) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_streams_come_from_the_servers_in_turn(tritons, kind, name):
    for number, triton in enumerate(tritons):
        bind_constant(triton, name, number, config=config_for(kind))
    with open_client(kind, [url_of(triton, "grpc") for triton in tritons], name) as client:
        assert responding_servers(client, 30) == {0: 10, 1: 10, 2: 10}


def test_both_protocols_in_one_list(tritons, kind, name):
    for number, triton in enumerate(tritons):
        bind_constant(triton, name, number)
    with open_client(kind, [url_of(tritons[0], "http"), url_of(tritons[1], "grpc")], name) as client:
        assert responding_servers(client, 10) == {0: 5, 1: 5}


def test_an_unreachable_server_is_skipped(kind, urls, name, protocol):
    with open_client(kind, [NOBODY[protocol], *urls[:2]], name) as client:
        started = time.monotonic()
        assert set(responding_servers(client, 20)) == {0, 1}
        assert time.monotonic() - started < 10


def test_a_host_without_power_is_skipped_after_seconds(kind, urls, name, protocol, monkeypatch):
    monkeypatch.setattr("pytriton.client.core.settings.FAILOVER_TIMEOUT_S", 0.5)
    with ModelClient(urls[0], name) as known:
        config = known.model_config
    dead = {"model_config": config, "ensure_model_is_ready": False}
    with powerless() as port, open_client(kind, [f"{protocol}://{HOST}:{port}", *urls[:2]], name, **dead) as client:
        started = time.monotonic()
        assert set(responding_servers(client, 20)) == {0, 1}
        assert time.monotonic() - started < 10


def test_the_system_breaks_connections_to_a_host_that_acknowledges_nothing(kind, urls, name, protocol):
    with open_client(kind, urls[0], name) as client:
        client.infer_sample([1])
        port = int(urls[0].rpartition(":")[2])
        limits_ms = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in connections_to(port)]
        assert limits_ms == [30_000]
        if protocol == "http":  # gRPC sends pings itself
            assert all(each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in connections_to(port))


def connections_to(port):
    """This process's connections to a port, of any library."""
    for each in psutil.Process().net_connections("tcp"):
        if each.raddr and each.raddr.port == port:
            with socket.socket(fileno=os.dup(each.fd)) as connection:
                yield connection


def test_a_server_without_the_model_is_skipped(tritons, kind, protocol, name):
    bind_constant(tritons[1], name, 1)
    with open_client(kind, [url_of(triton, protocol) for triton in tritons], name) as client:
        assert responding_servers(client, 10) == {1: 10}


def test_a_stopped_server_is_skipped_until_it_is_back(kind, tritons, protocol, name):
    for number, triton in enumerate(tritons):
        bind_constant(triton, name, number)
    ports = [triton.config.http_port if protocol == "http" else triton.config.grpc_port for triton in tritons[:2]]
    with proxy_of(ports[1]) as (proxy, port):
        urls = [url_of(tritons[0], protocol), f"{protocol}://{HOST}:{port}"]
        with open_client(kind, urls, name) as client:
            assert set(responding_servers(client, 10)) == {0, 1}
            proxy.stand_in(refusing)
            responses = collections.Counter()
            for _ in range(10):
                try:
                    responses += responding_servers(client, 1)
                except PyTritonClientInferenceServerError as error:  # its connection broke in mid-request
                    assert error.failure is Failure.LOST
            assert set(responses) == {0}
            assert responding_servers(client, 10) == {0: 10}
            proxy.stand_in(None)
            wait_until(lambda: responding_servers(client, 2)[1], timeout_s=30)
            assert responding_servers(client, 10) == {0: 5, 1: 5}


def test_requests_for_an_unloaded_model_go_to_other_servers(kind, tritons, protocol, name):
    for number, triton in enumerate(tritons):
        bind_constant(triton, name, number)
    urls = [url_of(triton, protocol) for triton in tritons[:2]]
    with open_client(kind, urls, name) as client, ModelClient(urls[0], name, init_timeout_s=10) as operator:
        assert set(responding_servers(client, 10)) == {0, 1}
        operator.unload_model()
        wait_until(lambda: responding_servers(client, 4) == {1: 4})
        operator.load_model()
        wait_until(lambda: responding_servers(client, 2)[0], timeout_s=30)


@pytest.mark.parametrize("first", [0, 1])
def test_a_server_that_does_not_respond_is_skipped(kind, urls, name, protocol, first):
    with listening(silent) as port:
        both = [f"{protocol}://{HOST}:{port}", urls[0]]
        with open_client(kind, [both[first], both[1 - first]], name, init_timeout_s=1, inference_timeout_s=1) as client:
            assert responding_servers(client, 6) == {0: 6}


def test_probing_a_server_that_does_not_respond_fails_no_request(urls, name, protocol):
    """Also where the timeout is so short that there is hardly time to look."""
    with listening(silent) as port:
        both = [f"{protocol}://{HOST}:{port}", urls[0]]
        with ModelClient(both, name, init_timeout_s=1, inference_timeout_s=1) as client:
            assert client.infer_sample([1])["y"] == [0]
            wait_until(lambda: not client._session.servers[0].is_left_out)
            assert responding_servers(client, 2) == {0: 2}


def test_none_of_the_servers_is_ready(kind, protocol, name):
    urls = [NOBODY[protocol], f"{protocol}://{HOST}:2"]
    with (
        open_client(kind, urls, name, init_timeout_s=0.3) as client,
        pytest.raises(PyTritonClientTimeoutError, match=rf"Waiting for model '{name}' at .*:1, .*:2 took"),
    ):
        client.infer_sample([1])
    with open_client(kind, urls, name, ensure_model_is_ready=False) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match="No server can be reached") as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE
        with pytest.raises(PyTritonClientInferenceServerError, match="None of the servers at"):
            client.infer_sample([1])


def test_none_of_the_servers_has_the_model(urls):
    with (
        ModelClient(urls, "no-such-model", init_timeout_s=1) as client,
        pytest.raises(PyTritonClientModelUnavailableError),
    ):
        client.infer_sample([1])
    with (
        ModelClient(urls, "no-such-model", ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientModelUnavailableError),
    ):
        client.infer_sample([1])


def test_the_parts_of_a_large_batch_go_to_all_servers(urls, name):
    with FuturesModelClient(urls, name) as client:
        response = client.infer_batch(np.ones((120, 1), np.float32)).result(60)["y"]
    assert collections.Counter(response.ravel().tolist()) == {0: 40, 1: 40, 2: 40}


def test_requests_in_flight_are_spread(urls, name):
    with FuturesModelClient(urls, name) as client:
        futures = [client.infer_sample([1]) for _ in range(90)]
        concurrent.futures.wait(futures, 60)
    assert collections.Counter(int(future.result()["y"][0]) for future in futures) == {0: 30, 1: 30, 2: 30}


def test_each_server_has_its_own_shared_memory(urls, name):
    large = np.ones(100_000, np.float32)
    with ModelClient(urls, name, shared_memory=True) as client:
        responses = [client.infer_sample(large)["y"] for _ in range(9)]
    assert collections.Counter(int(response[0]) for response in responses) == {0: 3, 1: 3, 2: 3}


def test_streams_require_grpc_of_all_servers(tritons):
    with pytest.raises(PyTritonClientValueError, match="use grpc://"):
        DecoupledModelClient([url_of(tritons[0], "grpc"), url_of(tritons[1], "http")], "any")


def test_requests_go_elsewhere_if_the_queue_of_a_server_is_full(kind, protocol, name):
    batcher = DynamicBatcher(default_queue_policy=QueuePolicy(max_queue_size=1))
    with open_triton() as busy, open_triton() as idle:
        entered, gate = held_model(busy, name, config=ModelConfig(max_batch_size=1, batcher=batcher))
        bind_floats(idle, name, lambda requests: [{"y": 0 * each["x"] + 7} for each in requests])
        busy.run()
        idle.run()
        urls = [url_of(busy, protocol), url_of(idle, protocol)]
        with open_client(kind, urls, name) as client, FuturesModelClient(urls[0], name) as others:
            held = [others.infer_sample([0])]
            assert entered.wait(30)
            while not _is_refused(held[-1]):
                held.append(others.infer_sample([0]))
            assert [client.infer_sample([number])["y"][0] for number in range(6)] == [7] * 6
            gate.set()


def _is_refused(future):
    """Whether the queue was full; queued requests wait."""
    try:
        return future.exception(0.5).failure is Failure.BUSY
    except concurrent.futures.TimeoutError:
        return False
