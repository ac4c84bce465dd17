"""Start, run and stop, and the state that `Triton` reports."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import psutil
import pytest
from serving import (
    LATER,
    Client,
    bind_floats,
    client_of,
    connection_to,
    double,
    free_config,
    is_ready,
    is_running,
    running_triton,
    send_floats,
    server_of,
    servers,
    shared_memory,
    taken_port,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.triton import Triton


def workspace_of(home):
    return sorted(home.glob("pytriton-*"))


def test_a_context_runs_a_server_and_stops_it(own_home):
    before = shared_memory()
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        server = server_of(triton)
        assert triton.is_alive()
        assert triton.is_connected()
        assert send_floats(triton, "double", [1]) == [2]
        assert workspace_of(own_home)

    assert not triton.is_alive()
    assert not triton.is_connected()
    assert not is_running(server)
    assert not workspace_of(own_home)
    assert shared_memory() <= before


def test_without_a_context_the_server_runs_until_stop():
    triton = running_triton()
    bind_floats(triton, "double", double)
    triton.run()

    assert send_floats(triton, "double", [1]) == [2]
    assert triton.stop() is True
    assert not servers()


def test_stop_is_idempotent():
    triton = running_triton()
    triton.run()

    assert [triton.stop(), triton.stop(), triton.stop()] == [True, False, False]


def test_stop_before_anything_runs_does_nothing():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)

    assert triton.stop() is False


def test_stop_from_several_threads_stops_once():
    triton = running_triton()
    triton.run()
    stopped = []

    threads = [threading.Thread(target=lambda: stopped.append(triton.stop())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(stopped) == [False, False, False, True]


def test_run_twice_is_run_once():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        server = server_of(triton)
        triton.run()

        assert server_of(triton) == server
        assert send_floats(triton, "double", [1]) == [2]


def test_models_are_served_again_after_run_stop_and_run():
    triton = running_triton()
    bind_floats(triton, "double", double)
    for _ in range(3):
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]
        assert triton.stop()

    bind_floats(triton, "triple", batch(lambda x: [x * 3]))
    with triton:
        triton.run()
        assert [send_floats(triton, each, [1]) for each in ("double", "triple")] == [[2], [3]]


def test_the_policy_decides_when_the_server_starts():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    assert not triton.is_alive()
    assert not servers()

    with triton:
        bind_floats(triton, "double", double)
        assert not triton.is_alive()
        triton.run()
        assert triton.is_connected()
        assert send_floats(triton, "double", [1]) == [2]


def test_no_process_is_started_and_no_port_used_before_it_is_needed(own_home):
    with taken_port() as port:
        triton = Triton(config=free_config(http_port=port))
        bind_floats(triton, "double", double)

        assert (triton.is_alive(), triton.is_connected(), triton.stop()) == (False, False, False)
        assert not servers()
        assert not list(own_home.iterdir())


def test_a_context_is_entered_when_all_bound_models_are_loaded():
    triton = running_triton()
    bind_floats(triton, "double", double)
    with triton:
        assert triton.is_connected()
        assert send_floats(triton, "double", [1]) == [2]
        assert not is_ready(triton), "more models may come until run()"
        triton.run()
        assert is_ready(triton)


@pytest.mark.parametrize("start", ["connect", "run"])
def test_without_a_context_run_starts_the_server(start):
    triton = running_triton()
    bind_floats(triton, "double", double)
    getattr(triton, start)()
    try:
        assert send_floats(triton, "double", [1]) == [2]
    finally:
        triton.stop()


def test_a_context_whose_server_fails_to_start_leaves_nothing_behind(own_home):
    with taken_port() as port, pytest.raises(PyTritonRuntimeError, match=rf"Port {port}"):
        running_triton(http_port=port).__enter__()
    assert not servers()


def test_two_servers_run_side_by_side():
    with running_triton() as one, running_triton() as other:
        bind_floats(one, "model", double)
        bind_floats(other, "model", batch(lambda x: [x * 3]))
        one.run()
        other.run()

        assert one.config.http_port != other.config.http_port
        assert [send_floats(each, "model", [1]) for each in (one, other)] == [[2], [3]]

        one.stop()
        assert send_floats(other, "model", [1]) == [3]


def test_one_server_after_the_other_on_the_same_ports():
    with running_triton() as first:
        first.run()
        config = first.config
        with connection_to(first) as connection:  # the server exits first, which leaves the port in TIME_WAIT
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            first.stop()
    with Triton(config=config) as second:
        second.run()

        assert (second.config.http_port, second.config.grpc_port) == (config.http_port, config.grpc_port)
        assert second.is_connected()


def test_is_connected_tells_whether_the_server_responds():
    with running_triton() as triton:
        triton.run()
        server = server_of(triton)
        server.suspend()
        try:
            wait_until(lambda: server.status() == psutil.STATUS_STOPPED)
            assert triton.is_alive()
            connected = []
            thread = threading.Thread(target=lambda: connected.append(triton.is_connected()))
            thread.start()
            thread.join(20)
            assert connected == [False]
        finally:
            server.resume()
        wait_until(triton.is_connected)


def test_serve_returns_when_another_thread_stops():
    triton = running_triton()
    bind_floats(triton, "double", double)
    returned = threading.Event()

    def serve():
        triton.serve()
        returned.set()

    thread = threading.Thread(target=serve)
    thread.start()
    wait_until(triton.is_connected)
    triton.run()
    assert send_floats(triton, "double", [1]) == [2]

    triton.stop()

    assert returned.wait(5)
    thread.join()
    assert not servers()


def test_stop_waits_for_requests_in_flight():
    entered = threading.Event()

    def slow(requests):
        entered.set()
        threading.Event().wait(0.5)
        return requests

    triton = running_triton()
    bind_floats(triton, "slow", slow)
    triton.run()
    responses = []
    thread = threading.Thread(target=lambda: responses.append(send_floats(triton, "slow", [5])))
    thread.start()
    assert entered.wait(30)
    config = triton.config

    triton.stop()
    thread.join()

    assert config.http_port
    assert responses == [[5]]


def test_a_hanging_callable_delays_stop_by_at_most_the_exit_timeout():
    entered, gate = threading.Event(), threading.Event()

    def hang(requests):
        entered.set()
        gate.wait(60)
        return requests

    triton = running_triton(exit_timeout_secs=1)
    bind_floats(triton, "hang", hang)
    triton.run()
    failed = threading.Event()

    def send():
        with client_of(triton) as client:
            try:
                client.infer("hang", {"x": np.ones((1, 1), np.float32)})
            except Exception:
                failed.set()

    threading.Thread(target=send).start()
    assert entered.wait(30)
    start = time.monotonic()
    try:
        triton.stop()
        assert time.monotonic() - start < 5
        assert failed.wait(5)
        assert not servers()
    finally:
        gate.set()


def test_a_given_workspace_keeps_its_contents(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "mine").write_text("kept")
    with Triton(config=free_config(), workspace=tmp_path / "w") as triton:
        bind_floats(triton, "double", double)
        triton.run()
        assert (tmp_path / "w" / "models" / "double" / "config.pbtxt").exists()

    assert [path.name for path in (tmp_path / "w").iterdir()] == ["mine"]


def test_a_workspace_whose_path_is_too_long_for_sockets_is_refused_by_name(tmp_path):
    long = tmp_path / ("x" * 100)

    with pytest.raises(PyTritonBadParameterError, match=r"is too long for a socket.*workspace="):
        Triton(config=free_config(), workspace=long).run()
    assert not servers()


def test_sockets_are_accessible_to_their_owner_only(own_home):
    with running_triton() as triton:
        triton.run()
        (workspace,) = workspace_of(own_home)
        sockets = workspace / "sockets"

        assert sockets.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in sockets.iterdir()} == {"controller", "registry", "workers"}


def test_clients_of_a_stopped_server_fail():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        client = Client("http", triton)
        client.infer("double", {"x": np.ones((1, 1), np.float32)})
    with pytest.raises(Exception, match=r"refused|closed|reset|None"):
        client.infer("double", {"x": np.ones((1, 1), np.float32)})
    client.close()


FOUR_MODELS = 4
LIMIT_READY_S = 1.0
LIMIT_STOP_S = 1.5
MARGIN = 2.0  # for a machine that does other things at the same time


def start_with_four_models():
    triton = running_triton()
    for number in range(FOUR_MODELS):
        bind_floats(triton, f"model_{number}", double)
    triton.run()
    return triton


@pytest.mark.parametrize("with_connection", [False, True])
def test_the_server_is_ready_within_a_second_and_stops_within_one_and_a_half(with_connection):
    start = time.monotonic()
    triton = start_with_four_models()
    ready_s = time.monotonic() - start
    with contextlib.ExitStack() as stack:
        if with_connection:  # kept alive by the client until the very end
            connection = stack.enter_context(connection_to(triton))
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            client = stack.enter_context(client_of(triton, "grpc"))
            assert client.raw.is_server_ready()
        start = time.monotonic()
        triton.stop()
        stop_s = time.monotonic() - start

    assert ready_s <= LIMIT_READY_S * MARGIN
    assert stop_s <= LIMIT_STOP_S * MARGIN
