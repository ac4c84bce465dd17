"""Clients that are given a function that returns the servers' addresses."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import gc
import pathlib

import numpy as np
import pytest
import tritonclient.http
from client_kinds import CLASSES, KINDS, config_for, every_kind, open_client, open_triton, url_of
from peers import HOST
from serving import bind_floats, held_model, server_of, wait_until

from pytriton.client import (
    AsyncioDecoupledModelClient,
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.core.background import BackgroundThreads
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig

LARGE = np.ones(100_000, np.float32)


@pytest.fixture(scope="module")
def tritons():
    """Three servers."""
    with open_triton() as first, open_triton() as second, open_triton() as third:
        for triton in (first, second, third):
            triton.run()
        yield first, second, third


class Addresses:
    """The addresses of those servers that are said to be there."""

    def __init__(self, tritons, protocol):
        self.all = [url_of(triton, protocol) for triton in tritons]
        self.lookups = 0
        self.urls = []

    def __call__(self):
        self.lookups += 1
        return self.urls

    def show(self, *numbers):
        self.urls = [self.all[number] for number in numbers]


@pytest.fixture
def addresses(tritons, protocol, kind, name):
    """Their addresses, none of which is listed yet; each has a model that returns the server's number."""

    def constant(number):
        return lambda requests: [{"y": 0 * each["x"] + number} for each in requests]

    for number, triton in enumerate(tritons):
        bind_floats(triton, name, constant(number), config=config_for(kind))
    return Addresses(tritons, protocol)


def responding_servers(client, count):
    return collections.Counter(int(client.infer_sample([1])["y"][0]) for _ in range(count))


def servers_of(client):
    inner = getattr(client, "client", client)
    return getattr(inner, "_client", inner)._session.servers


@every_kind
def test_requests_follow_the_addresses(kind, addresses, name):
    with open_client(kind, addresses, name) as client:
        addresses.show(0)
        assert responding_servers(client, 2) == {0: 2}
        (first,) = servers_of(client)
        addresses.show(0, 1)
        assert responding_servers(client, 4) == {0: 2, 1: 2}
        assert servers_of(client)[0] is first
        addresses.show(2)
        assert responding_servers(client, 2) == {2: 2}


@every_kind
def test_the_first_request_waits_for_an_address(kind, addresses, name):
    with open_client(kind, addresses, name) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        request = pool.submit(responding_servers, client, 1)
        wait_until(lambda: addresses.lookups > 3 or request.done())
        addresses.show(1)
        assert request.result(10) == {1: 1}


@every_kind
def test_a_request_waits_while_there_is_no_address(kind, addresses, name):
    addresses.show(0)
    with open_client(kind, addresses, name) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        responding_servers(client, 1)
        addresses.show()
        lookups = addresses.lookups
        request = pool.submit(responding_servers, client, 1)
        wait_until(lambda: addresses.lookups > lookups + 2 or request.done())
        addresses.show(1)
        assert request.result(10) == {1: 1}


@every_kind
def test_a_lack_of_addresses_is_an_error_after_a_while(kind, addresses, name):
    def send_without_address(client):
        message = r"Addresses\(\).* no address at present"
        with pytest.raises(PyTritonClientInferenceServerError, match=message) as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE

    with open_client(kind, addresses, name, init_timeout_s=0.1) as client:
        send_without_address(client)
    with open_client(kind, addresses, name, restart_timeout_s=0.1) as client:
        addresses.show(0)
        responding_servers(client, 1)
        addresses.show()
        send_without_address(client)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "futures"])
@pytest.mark.parametrize("protocol", ["grpc"])
def test_waiting_for_servers_and_models_without_an_address(kind, addresses, name):
    with open_client(kind, addresses, name) as client:
        for wait in (client.wait_for_server, client.wait_for_model):
            with pytest.raises(PyTritonClientTimeoutError, match="no address at present"):
                wait(0.1)
        addresses.show(0)
        client.wait_for_server(5)
        client.wait_for_model(5)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_results_and_errors_of_the_function_are_reported(kind, protocol, addresses, name):
    with open_client(kind, addresses, name) as client:
        addresses.urls = "localhost:8000"
        with pytest.raises(PyTritonClientValueError, match="returned 'localhost:8000'"):
            client.infer_sample([1])
        addresses.show(0)
        responding_servers(client, 1)

    def fail():
        raise OSError("no network")

    with open_client(kind, fail, name) as client, pytest.raises(PyTritonClientError, match=r"fail\(\).*no network"):
        client.infer_sample([1])


@pytest.mark.parametrize("kind", ["decoupled", "asyncio-decoupled"])
@pytest.mark.parametrize("protocol", ["http"])
def test_streams_require_grpc_addresses(kind, addresses, name):
    addresses.show(0)
    with open_client(kind, addresses, name) as client, pytest.raises(PyTritonClientValueError, match="use grpc://"):
        client.infer_sample([1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_in_flight_at_a_removed_server_is_completed(kind, protocol, tritons, name):
    entered, gate = held_model(tritons[0], name)
    addresses = Addresses(tritons, protocol)
    addresses.show(0)
    bind_floats(tritons[1], name, lambda requests: [{"y": 0 * each["x"] + 1} for each in requests])
    with open_client(kind, addresses, name) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        request = pool.submit(client.infer_sample, [5], timeout_s=20)
        assert entered.wait(10)
        (server,) = servers_of(client)
        addresses.show(1)
        assert responding_servers(client, 3) == {1: 3}
        assert (server.is_gone, server.users, server.transport._closed) == (True, 1, False)
        gate.set()
        assert request.result(10)["y"] == [5]
        wait_until(lambda: server.transport._closed)


COUNTING = ModelConfig(decoupled=True, max_batch_size=1)  # a batch would have as many responses for each request


@batch
def count(x):
    for number in range(int(x[0, 0])):
        yield {"y": np.full_like(x, number)}


def test_a_stream_from_a_removed_server_is_completed(tritons, name):
    for triton in tritons:
        bind_floats(triton, name, count, config=COUNTING)
    addresses = Addresses(tritons, "grpc")
    addresses.show(0)
    with DecoupledModelClient(addresses, name) as client:
        ended, left = client.infer_sample([20]), client.infer_sample([10_000])
        assert next(ended)["y"] == [0]
        next(left)
        (server,) = servers_of(client)
        addresses.show(1)
        assert len(list(client.infer_sample([3]))) == 3
        assert server.is_gone
        assert [int(each["y"][0]) for each in ended] == list(range(1, 20))
        assert not server.transport._closed  # the other stream uses it
        left.close()
        wait_until(lambda: server.transport._closed)


def test_an_asyncio_stream_from_a_removed_server_is_completed(tritons, name):
    for triton in tritons:
        bind_floats(triton, name, count, config=COUNTING)
    addresses = Addresses(tritons, "grpc")
    addresses.show(0)

    async def main():
        async with AsyncioDecoupledModelClient(addresses, name) as client:
            ended, forgotten = client.infer_sample([20]), client.infer_sample([10_000])
            await anext(ended)
            await anext(forgotten)
            (server,) = servers_of(client)
            addresses.show(1)
            assert len([each async for each in client.infer_sample([3])]) == 3
            assert len([each async for each in ended]) == 19
            assert not server.transport._closed
            del forgotten
            for _ in range(1000):
                if server.transport._closed:
                    break
                await asyncio.sleep(0.01)
            assert server.transport._closed

    asyncio.run(main())


def ask(triton):
    return contextlib.closing(tritonclient.http.InferenceServerClient(f"{HOST}:{triton.config.http_port}"))


def is_model_ready(triton, name):
    with ask(triton) as client:
        return client.is_model_ready(name)


def regions_at(triton):
    with ask(triton) as client:
        return [each["name"] for each in client.get_system_shared_memory_status()]


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory_of_a_removed_server_is_released(kind, protocol, tritons, addresses, name):
    addresses.show(0)
    with open_client(kind, addresses, name, shared_memory=True) as client:
        kept = client.infer_sample(LARGE)["y"]
        assert regions_at(tritons[0])
        addresses.show(1)
        assert client.infer_sample(LARGE)["y"][0] == 1
        wait_until(lambda: not regions_at(tritons[0]))
        assert kept[0] == 0
    assert not regions_at(tritons[1])


def test_shared_memory_of_a_hanging_server_delays_nothing(protocol, name, monkeypatch):
    started = []
    run = BackgroundThreads.run
    monkeypatch.setattr(BackgroundThreads, "run", lambda self, steps: (started.append(steps), run(self, steps)))
    echo = batch(lambda x: [x])
    with open_triton(restart_limit=0) as hanging, open_triton() as well:
        for triton in (hanging, well):
            bind_floats(triton, name, echo)
            triton.run()
        addresses = Addresses([hanging, well], protocol)
        addresses.show(0)
        process = server_of(hanging)
        try:
            with ModelClient(addresses, name, shared_memory=True) as client:
                client.infer_sample(LARGE)
                process.suspend()
                addresses.show(1)
                assert client.infer_sample(LARGE)["y"][0] == 1
                wait_until(lambda: started)  # which waits for the server, unlike the request
        finally:
            process.kill()


def resources():
    gc.collect()
    return tuple(len(list(pathlib.Path("/proc/self", each).iterdir())) for each in ("fd", "task"))


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_thousand_changes_leave_nothing_behind(kind, protocol, addresses, name):
    """Over HTTP, also the connections of a thread that sends nothing any more."""
    with open_client(kind, addresses, name) as client, concurrent.futures.ThreadPoolExecutor(1) as idle:

        def change(times):
            for number in range(times):
                addresses.show(number % 3)
                addresses.urls = [*addresses.urls, f"{protocol}://{HOST}:{number + 1}"]
                if number % 10 == 0:
                    client.infer_sample([1])
                else:
                    servers_of(client)
                    _look(client)

        addresses.show(0, 1, 2)
        idle.submit(responding_servers, client, 3).result()
        change(30)
        before = resources()
        change(1000)
        wait_until(lambda: all(now <= then + 6 for now, then in zip(resources(), before, strict=True)))
        assert len(client.client._session.server_set._gone) == 0


def _look(client):
    """Looks for servers as a request does, without one."""
    session = client.client._session
    if client.kind == "asyncio":
        client._wait(_looking(session), (), {})
    else:
        session.server_set.look()


def _looking(session):
    async def look():
        session.server_set.look()

    return look


def test_a_model_is_loaded_and_unloaded_on_all_current_servers(tritons, protocol, name):
    for triton in tritons:
        bind_floats(triton, name, batch(lambda x: [x]))
    addresses = Addresses(tritons, protocol)
    addresses.show(0, 1)
    with ModelClient(addresses, name) as client:
        client.infer_sample([1])
        client.unload_model()
        assert [is_model_ready(triton, name) for triton in tritons] == [False, False, True]
        client.load_model()
        assert [is_model_ready(triton, name) for triton in tritons] == [True, True, True]


@pytest.mark.parametrize("kind", ["blocking"])
def test_a_client_made_from_another_follows_the_same_addresses(addresses, protocol, kind, name):
    addresses.show(0)
    with ModelClient(addresses, name) as client:
        client.infer_sample([1])
        with FuturesModelClient(addresses, name) as futures, ModelClient.from_existing_client(client) as other:
            addresses.show(1)
            assert other.infer_sample([1])["y"] == [1]
            assert futures.infer_sample([1]).result(10)["y"] == [1]
