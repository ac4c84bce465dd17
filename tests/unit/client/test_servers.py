"""The choice of the next server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.servers import Balancer, Server
from pytriton.client.core.transports import blocking_transport
from pytriton.client.url import TritonUrl


def servers(count):
    return [server("http", port) for port in range(1, count + 1)]


def server(protocol="http", port=1, **headers):
    return Server(blocking_transport(TritonUrl(protocol, "localhost", port), ConnectOptions()), headers)


@given(st.integers(1, 5), st.integers(1, 20))
def test_servers_are_used_in_turn(count, requests):
    all_servers = servers(count)
    balancer = Balancer(all_servers)

    for number in range(requests):
        order = list(balancer.candidates())
        assert order[0] is all_servers[number % count]
        assert sorted(map(id, order)) == sorted(map(id, all_servers))


@given(st.integers(2, 5), st.data())
def test_servers_marked_down_come_last(count, data):
    all_servers = servers(count)
    balancer = Balancer(all_servers)
    out = data.draw(st.sets(st.sampled_from(range(count)), max_size=count))
    for index in out:
        all_servers[index].mark_down()

    for _ in range(2 * count):
        order = [all_servers.index(server) in out for server in balancer.candidates()]
        assert order == sorted(order)


def test_a_server_is_marked_up_again():
    (server,) = servers(1)
    assert not server.was_left_out
    for _ in range(2000):  # however often
        server.mark_down()
    assert server.is_left_out
    server.mark_up()
    assert not server.is_left_out
    assert not server.was_left_out


def test_headers_of_a_request_override_those_of_the_client():
    http = server("http", a="1", b="2")
    grpc = server("grpc", a="1")

    assert http.headers({"b": "3", "C": "4"}) == {"a": "1", "b": "3", "C": "4"}
    assert grpc.headers({"C": "4"}) == {"a": "1", "c": "4"}  # gRPC's metadata has no capitals
