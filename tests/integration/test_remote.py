"""Functions that another process serves on a running server."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    HOST,
    Background,
    Script,
    bind_floats,
    client_of,
    free_ports,
    infer_json,
    is_running,
    json_floats,
    request_json,
    running_triton,
    send_floats,
    server_of,
    wait_until,
)

from pytriton.client import ModelClient
from pytriton.constants import TRITON_ACCESS_HEADER
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.triton import RemoteTriton

REMOTE = """
import signal, sys, threading, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton

@batch
def triple(x):
    if x[0, 0] < 0:
        print("asleep", flush=True)
        time.sleep(60)
    return [x * 3]

with RemoteTriton(url=sys.argv[1], access_token=sys.argv[2]) as triton:
    triton.bind("Triple", triple, inputs=[Tensor((-1,), np.float32, "x")], outputs=[Tensor((-1,), np.float32, "y")])
    def say():
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(0.002)
        print("ready", flush=True)
    threading.Thread(target=say).start()
    triton.serve()
print("after", flush=True)
"""


@batch
def double(x):
    return [x * 2]


@pytest.fixture
def remote(triton, tmp_path):
    with Script(tmp_path, REMOTE, f"localhost:{triton.config.http_port}", triton.get_access_token()) as script:
        assert script.line() == "ready", script.stderr
        yield script


def is_served(triton, model):
    return request_json(triton, "GET", f"/v2/models/{model}/ready")[0] == 200


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_model_is_sent_through_the_repository_api(triton, name, home, scheme):
    port = getattr(triton.config, f"{scheme}_port")
    url, token = f"{scheme}://127.0.0.1:{port}", triton.get_access_token()
    with RemoteTriton(url=url, workspace=home / "remote", access_token=token) as remote:
        bind_floats(remote, name, double)

        assert remote.is_connected()
        with client_of(triton) as client:
            outputs = client.infer(name, {"x": np.array([[1, 2]], np.float32)})
        np.testing.assert_array_equal(outputs["y"], [[2, 4]])
    assert not is_served(triton, name)
    assert not remote.is_connected()
    wait_until(triton.is_connected)  # not while a model is on its way out: Triton calls itself unready


@pytest.mark.parametrize("token", [None, "another"])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_without_the_token_nothing_can_be_bound(triton, name, scheme, token):
    port = getattr(triton.config, f"{scheme}_port")
    remote = RemoteTriton(url=f"{scheme}://127.0.0.1:{port}", access_token=token)

    with remote, pytest.raises(PyTritonInvalidOperationError, match=r"restricted.*get_access_token.*access_token"):
        bind_floats(remote, name, double)
    assert not is_served(triton, name)


def test_models_bound_before_connecting_are_loaded_on_connecting(triton, name):
    remote = RemoteTriton(url=f"localhost:{triton.config.http_port}", access_token=triton.get_access_token())
    remote.bind(name, double, inputs=FLOATS_IN, outputs=FLOATS_OUT)
    assert not is_served(triton, name)
    remote.connect()
    try:
        assert send_floats(triton, name, [3]) == [6]
    finally:
        assert remote.stop()
    assert not remote.stop()


def test_functions_of_several_processes_are_served_side_by_side(triton, name, remote):
    bind_floats(triton, name, double)

    assert send_floats(triton, name, [1]) == [2]
    assert send_floats(triton, "Triple", [1]) == [3]


def test_models_are_unloaded_when_their_process_exits(triton, remote):
    remote.signal(signal.SIGTERM)

    assert remote.line() == "after"
    assert remote.wait() == 0
    assert not is_served(triton, "Triple")


def test_the_models_of_a_killed_process_are_dropped_within_seconds(triton, remote):
    assert send_floats(triton, "Triple", [1]) == [3]
    remote.process.kill()
    remote.wait()

    wait_until(lambda: not is_served(triton, "Triple"), 10)
    wait_until(triton.is_connected, 10)  # not while a model is being unloaded


def test_models_are_loaded_even_if_the_server_exits_again_meanwhile(monkeypatch):
    with running_triton(restart_limit=100) as triton:
        triton.run()
        url = f"http://127.0.0.1:{triton.config.http_port}"
        with RemoteTriton(url=url, access_token=triton.get_access_token()) as remote:
            bind_floats(remote, "double", double)
            control, killed = remote._session.server.control, []
            load = control.load

            def kill_and_load(*args):
                if len(killed) < 2:
                    killed.append(server_of(triton))
                    killed[-1].kill()
                    wait_until(lambda: not is_running(killed[-1]))
                load(*args)

            monkeypatch.setattr(control, "load", kill_and_load)
            server_of(triton).kill()
            with ModelClient(url, "double", restart_timeout_s=30) as client:
                wait_until(lambda: len(killed) == 2, 30)
                assert client.infer_sample(np.float32([3]))["y"].tolist() == [6]


def test_a_restarted_process_serves_again(triton, remote, tmp_path):
    remote.process.kill()
    remote.wait()
    with Script(tmp_path, REMOTE, f"localhost:{triton.config.http_port}", triton.get_access_token()) as again:
        assert again.line() == "ready", again.stderr
        assert send_floats(triton, "Triple", [1]) == [3]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("ending", ["stop", "unbind"])
def test_a_model_that_another_process_has_replaced_stays_loaded(triton, name, caplog, scheme, ending):
    url, token = f"{scheme}://{HOST}:{getattr(triton.config, f'{scheme}_port')}", triton.get_access_token()
    with RemoteTriton(url=url, access_token=token) as later:
        with RemoteTriton(url=url, access_token=token) as earlier:
            bind_floats(earlier, name, batch(lambda x: [x * 3]))
            bind_floats(later, name, double)
            assert f"The server already has a model {name!r}, of another process: it is replaced." in caplog.text
            assert send_floats(triton, name, [1]) == [2]
            if ending == "unbind":
                earlier.unbind(name)
        assert send_floats(triton, name, [1]) == [2]
        assert f"Another process has replaced model {name!r}: the server keeps it." in caplog.text
    assert not is_served(triton, name)


def test_requests_in_flight_at_a_killed_process_fail(triton, remote):
    responses = []
    request = threading.Thread(target=lambda: responses.append(infer_json(triton, "Triple", [json_floats([-1])])))
    request.start()
    assert remote.line() == "asleep"
    remote.process.kill()

    request.join(5)
    ((status, response),) = responses
    assert status >= 500 or status == 400
    assert "model 'Triple': the worker has gone" in response["error"]


@pytest.mark.parametrize("url", ["ftp://localhost", "http://", "localhost:many", "http://localhost:8000/v2"])
def test_an_invalid_url_is_refused(url):
    with pytest.raises(PyTritonBadParameterError, match="is not a valid URL of a server"):
        RemoteTriton(url=url)


def test_the_error_without_a_server_says_what_to_check(monkeypatch):
    monkeypatch.setattr("pytriton.server.remote.DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0.2)
    nowhere = RemoteTriton(url=f"{HOST}:{free_ports(1)[0]}")
    said = r"is not ready after 0\.2 s: no connection \(.*refused.*\)\. Check the address"
    with pytest.raises(PyTritonRuntimeError, match=said):
        nowhere.connect()


def test_a_wait_for_a_server_is_logged(triton, monkeypatch, caplog):
    monkeypatch.setattr("pytriton.server.remote.DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0.3)
    monkeypatch.setattr("pytriton.server.remote._SILENT_S", 0)
    url = f"{HOST}:{triton.config.grpc_port}"
    with pytest.raises(PyTritonRuntimeError, match=r"is not ready after 0\.3 s: what listens there is no live Triton"):
        RemoteTriton(url=url).connect()
    assert caplog.text.count(f"Waiting for the server at {url}: what listens there is no live Triton.") == 1


def test_a_server_that_comes_back_with_another_token_ends_serve_with_its_refusal(monkeypatch):
    with running_triton() as triton:
        triton.run()
        remote = RemoteTriton(url=f"{HOST}:{triton.config.http_port}", access_token=triton.get_access_token())
        with remote:
            bind_floats(remote, "double", double)
            serving = Background(remote.serve)
            monkeypatch.setitem(remote._session.server.control._headers, TRITON_ACCESS_HEADER, "another")
            server_of(triton).kill()
            with pytest.raises(PyTritonRuntimeError, match=r"cannot be used again: .*restricted.*get_access_token"):
                raise serving.finish().error


def test_a_server_accepts_remote_models_before_its_owner_calls_run():
    with running_triton() as triton:
        url, token = f"{HOST}:{triton.config.http_port}", triton.get_access_token()
        with RemoteTriton(url=url, access_token=token) as early:
            bind_floats(early, "Early", batch(lambda x: [x * 2]))
            assert send_floats(triton, "Early", [2]) == [4]
