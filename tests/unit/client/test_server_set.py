"""A client's servers that are added and removed."""

from __future__ import annotations

import collections
import gc
import logging
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientValueError,
)
from pytriton.client.core.sansio import run
from pytriton.client.core.server_set import ChangingServerSet, name_of, server_of
from pytriton.client.core.servers import Server
from pytriton.client.url import TritonUrl

CLIENTS = [ModelClient, FuturesModelClient, AsyncioModelClient, DecoupledModelClient, AsyncioDecoupledModelClient]


class Connection:
    """A transport that knows whether it is closed."""

    def __init__(self, url):
        self.url = url
        self.closed = 0

    def close(self):
        self.closed += 1


class Changing:
    """A set of servers whose addresses are those of the ports at present."""

    def __init__(self, *ports):
        self.ports = ports
        self.connections = []
        self.lookups = 0
        self.set = ChangingServerSet(self.addresses, self.server_at, lambda _: None, run)

    def addresses(self):
        self.lookups += 1
        if isinstance(self.ports, Exception):
            raise self.ports
        return [f"localhost:{port}" for port in self.ports] if isinstance(self.ports, tuple) else self.ports

    def server_at(self, url):
        self.connections.append(Connection(url))
        return Server(self.connections[-1], {})

    def look(self, *ports):
        self.ports = ports
        return self.set.look()

    def open(self):
        return [each.url.port for each in self.connections if not each.closed]


def ports_of(servers):
    return [server.transport.url.port for server in servers]


PORTS = st.lists(st.integers(1, 5), max_size=5, unique=True)


@given(st.lists(PORTS, max_size=8))
def test_remaining_servers_keep_their_connections_and_removed_ones_lose_them(lists):
    changing = Changing()
    before = {}
    for ports in lists:
        now = {server.transport.url.port: server for server in changing.look(*ports)}
        assert list(now) == ports
        assert all(now[port] is before[port] for port in now.keys() & before.keys())
        assert sorted(changing.open()) == sorted(ports)
        before = now
    assert all(each.closed <= 1 for each in changing.connections)


def test_no_address_is_looked_up_before_the_first_use():
    changing = Changing(1)
    assert (changing.lookups, list(changing.set.present)) == (0, [])


def test_a_server_in_use_is_closed_when_the_last_request_has_ended():
    changing = Changing()
    server, _ = changing.look(1, 2)
    assert changing.set.hold(server)
    changing.set.keep(server)
    changing.look(2)
    assert not changing.set.hold(server)  # no new request
    changing.set.release(server)
    assert changing.open() == [1, 2]
    changing.set.release(server)
    assert changing.open() == [2]


def test_a_server_that_returns_while_it_is_in_use_is_the_same():
    changing = Changing()
    (server,) = changing.look(1)
    changing.set.hold(server)
    changing.look()
    assert list(changing.look(1)) == [server]
    changing.set.release(server)
    assert changing.open() == [1]


def test_ending_it_returns_all_open_servers_without_closing_them():
    changing = Changing()
    one, two = changing.look(1, 2)
    changing.set.hold(one)
    changing.look(2)
    assert ports_of(changing.set.end()) == [2, 1]
    changing.set.release(one)
    assert changing.open() == [1, 2]
    with pytest.raises(PyTritonClientClosedError):
        changing.look(3)
    assert two in changing.set.present


def test_each_attempt_looks_up_addresses_once_and_tries_each_server_once():
    changing = Changing(1, 2, 3)
    tried = [server.transport.url.port for server in changing.set.candidates()]
    assert sorted(tried) == [1, 2, 3]
    assert changing.lookups == 4


def test_a_server_added_between_two_attempts_is_tried():
    changing = Changing(1)
    candidates = changing.set.candidates()
    assert next(candidates).transport.url.port == 1
    changing.ports = (2,)
    assert ports_of(candidates) == [2]


def test_requests_go_to_the_servers_in_turn():
    changing = Changing(1, 2, 3)
    first = [next(changing.set.candidates()).transport.url.port for _ in range(30)]
    assert collections.Counter(first) == {1: 10, 2: 10, 3: 10}


def test_an_address_given_twice_is_one_server():
    assert ports_of(Changing().look(1, 1, 2)) == [1, 2]


def test_a_list_that_is_changed_in_place():
    urls = ["localhost:1"]
    changing = Changing()
    changing.ports = urls
    assert ports_of(changing.set.look()) == [1]
    urls[:] = ["localhost:2"]
    assert ports_of(changing.set.look()) == [2]


def test_an_older_lookup_does_not_overwrite_a_newer_one():
    changing = Changing()
    changing.look(1)
    lookups, gate = threading.Event(), threading.Event()
    answers = iter([["localhost:1", "localhost:2"], ["localhost:3"]])

    def addresses():
        answer = next(answers)
        if len(answer) == 2:
            lookups.set()
            gate.wait(10)
        return answer

    changing.set._addresses = addresses
    slow = threading.Thread(target=changing.set.look)
    slow.start()
    lookups.wait(10)
    assert ports_of(changing.set.look()) == [3]
    gate.set()
    slow.join()
    assert ports_of(changing.set.present) == [3]
    assert changing.open() == [3]


def test_many_changes_in_many_threads_leave_nothing_behind():
    changing = Changing(1, 2)
    stop = threading.Event()

    def send():
        while not stop.is_set():
            for server in changing.set.candidates():
                if changing.set.hold(server):
                    try:
                        assert not server.transport.closed
                    finally:
                        changing.set.release(server)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        changing.look(number % 7 + 1, number + 10)
    stop.set()
    for thread in threads:
        thread.join()
    changing.look(1)
    assert changing.open() == [1]
    assert not changing.set._gone
    gone = [weakref.ref(each) for each in changing.connections if each.closed]
    changing.connections = [each for each in changing.connections if not each.closed]
    gc.collect()
    assert not any(each() for each in gone)


def test_a_failing_function_does_not_change_the_servers(caplog):
    changing = Changing()
    servers = changing.look(1)
    changing.ports = OSError("no network")
    with caplog.at_level(logging.WARNING):
        assert changing.set.look() is changing.set.look() is servers
    assert [record.getMessage() for record in caplog.records] == [
        "Changing.addresses() failed; requests go to the servers that it returned before."
    ]
    changing.look(1)
    changing.ports = OSError("no network again")
    with caplog.at_level(logging.WARNING):
        changing.set.look()
    assert len(caplog.records) == 2


def test_a_function_that_fails_before_any_server_is_known():
    changing = Changing()
    changing.ports = OSError("no network")
    with pytest.raises(PyTritonClientInferenceServerError, match=r"Changing.addresses\(\).*no network") as caught:
        changing.set.look()
    assert caught.value.failure is Failure.UNREACHABLE
    assert isinstance(caught.value.__cause__, OSError)


async def coroutine():
    return ["localhost"]


@pytest.mark.parametrize("value", [None, "localhost:8000", 7, {"localhost"}, b"localhost", coroutine()])
def test_results_other_than_lists_are_refused(value):
    changing = Changing()
    changing.ports = value
    with pytest.raises(PyTritonClientValueError, match=r"Changing.addresses\(\).* returned .*; let it return a list"):
        changing.set.look()


@pytest.mark.parametrize("value", ["ftp://localhost", "local host", 7, None])
def test_an_invalid_url_is_named_and_changes_nothing(value):
    changing = Changing()
    servers = changing.look(1)
    changing.ports = ["localhost:2", value]
    with pytest.raises(PyTritonClientInvalidUrlError, match=r"Changing.addresses\(\)") as caught:
        changing.set.look()
    assert repr(value) in caught.value.message
    assert changing.set.present is servers


def test_a_lack_of_addresses_is_an_error():
    changing = Changing()
    assert list(changing.set.candidates()) == []
    error = changing.set.none_ready("any")
    assert "returns no address at present" in error.message
    assert error.failure is Failure.UNREACHABLE


@given(st.integers(2, 8), st.data())
def test_few_keys_move_when_a_server_is_removed(count, data):
    servers = [Server(Connection(TritonUrl("grpc", "host", port)), {}) for port in range(count)]
    leaving = data.draw(st.sampled_from(servers))
    staying = [server for server in servers if server is not leaving]
    for key in range(50):
        before = server_of(servers, key)
        assert server_of(staying, key) is before or before is leaving


def test_keys_are_spread():
    servers = [Server(Connection(TritonUrl("grpc", "host", port)), {}) for port in range(8001, 8005)]
    counts = collections.Counter(server_of(servers, key).url for key in range(400))
    assert len(counts) == 4
    assert min(counts.values()) > 50


@pytest.mark.parametrize("client_class", CLIENTS)
def test_creating_clients_looks_up_no_addresses(client_class):
    changing = Changing()
    client = client_class(changing.addresses, "any")
    assert changing.lookups == 0
    if client_class is not FuturesModelClient:
        assert repr(client) == f"{client_class.__name__}(Changing.addresses(), 'any')"


def test_names_of_functions():
    class Pool:
        def __call__(self):
            return []

    assert name_of(Pool()).endswith("Pool()")
    assert name_of(len) == "len()"
