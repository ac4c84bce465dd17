"""The first contact of a client: no server, the other protocol, or a server without its model."""

from __future__ import annotations

import socket
import time

import pytest
from client_kinds import config_for, every_kind, known, open_client, open_triton, url_of
from peers import is_last, listening, proxy_of, refusing, silent
from serving import HOST, Background, bind_floats, free_config, wait_until

from pytriton.client import (
    Failure,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.client.core import wait_policy
from pytriton.server.control import control_of_url
from pytriton.triton import Triton

AT_ONCE_S = 5.0
"""Far less than the timeout of 300 s, also where the machine is busy."""
OTHER_PROGRAM_S = 0.5  # in place of five seconds


@pytest.fixture(autouse=True)
def other_programs_are_waited_for_shortly(monkeypatch):
    monkeypatch.setattr(wait_policy, "_OTHER_PROGRAM_S", OTHER_PROGRAM_S)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def fails_at_once(client, error, message):
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        client.infer_sample([1])
    assert time.monotonic() - started < AT_ONCE_S
    return caught.value


@pytest.fixture
def ports():
    """Closed ports for HTTP and gRPC."""
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        return {"http": one.getsockname()[1], "grpc": other.getsockname()[1]}


def starting(ports):
    return open_triton(http_port=ports["http"], grpc_port=ports["grpc"])


@every_kind
def test_no_server_is_running(kind, protocol):
    with open_client(kind, f"{protocol}://{HOST}:1", "any") as client:
        message = r"No server can be reached at .*:1.*\. Check that the server is running, .* port .*init_time"
        fails_at_once(client, PyTritonClientTimeoutError, message)


def test_no_server_is_running_at_any_of_several_addresses(protocol):
    with ModelClient([f"{protocol}://{HOST}:1", f"{protocol}://{HOST}:2"], "any") as client:
        fails_at_once(client, PyTritonClientTimeoutError, "No server can be reached at")


def test_a_server_of_this_machine_is_reached_without_the_proxy_of_the_environment(monkeypatch, triton, name):
    bind_floats(triton, name, echo)
    monkeypatch.setenv("http_proxy", f"http://{HOST}:9")
    with ModelClient(url_of(triton, "grpc"), name) as client:
        assert client.infer_sample([3])["y"] == [3]


@every_kind
def test_with_a_timeout_a_client_waits_for_a_server_to_start(kind, protocol, ports, name):
    with open_client(kind, f"{protocol}://{HOST}:{ports[protocol]}", name, init_timeout_s=60) as client:
        response = Background(lambda: client.infer_sample([1]))
        with starting(ports) as triton:
            bind_floats(triton, name, echo, config=config_for(kind))
            triton.run()
            assert response.finish(60).result["y"] == [1]


def test_a_client_made_from_another_waits_as_long(protocol):
    with (
        ModelClient(f"{protocol}://{HOST}:1", "any") as client,
        ModelClient.from_existing_client(client) as other,
    ):
        fails_at_once(other, PyTritonClientTimeoutError, "No server can be reached")


def test_a_client_waits_for_a_model_that_is_loaded_after_the_start(protocol, ports, name):
    """A server that loads its models after it is ready, as nvidia-pytriton's does."""
    with ModelClient(f"{protocol}://{HOST}:{ports[protocol]}", name, init_timeout_s=60) as client:
        response = Background(lambda: client.infer_sample([1]))
        wait_until(lambda: client._session.servers[0].was_left_out)
        with starting(ports) as triton:
            triton.run()
            with ModelClient(url_of(triton, protocol), "any") as other:
                fails_at_once(other, PyTritonClientModelUnavailableError, "has no model 'any'")
            assert response.is_alive()
            bind_floats(triton, name, echo)
            assert response.finish(60).result["y"] == [1]


@every_kind
def test_a_missing_model_on_a_ready_server(triton, name, kind, protocol):
    bind_floats(triton, name, echo)
    with open_client(kind, url_of(triton, protocol), "no-such-model") as client:
        message = r"is ready and has no model 'no-such-model'; it has 'test_"
        fails_at_once(client, PyTritonClientModelUnavailableError, message)


@every_kind
def test_a_model_that_was_unloaded(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    token = triton.get_access_token()
    control = control_of_url(url_of(triton, "http"), token)
    control.unload(name)
    wait_until(lambda: control.states()[name, 1].endswith("unloaded"))
    with open_client(kind, url_of(triton, protocol), name, access_token=token) as client:
        message = f"is ready, and has unloaded model '{name}'; bind it, or load it, again"
        fails_at_once(client, PyTritonClientModelUnavailableError, message)


@every_kind
def test_a_missing_version_on_a_ready_server(triton, name, kind, protocol):
    for version in (1, 2):
        bind_floats(triton, name, echo, model_version=version, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name, model_version="3") as client:
        message = rf"is ready and has no model '{name}' version 3; it has version 1, 2 of it\."
        fails_at_once(client, PyTritonClientModelUnavailableError, message)


def test_a_server_whose_models_may_not_be_listed(protocol, name):
    with Triton(config=free_config()) as triton:
        bind_floats(triton, name, echo)
        triton.run()
        for settings in ({}, {"init_timeout_s": 0.5}):
            with ModelClient(url_of(triton, protocol), "no-such-model", **settings) as client:
                message = r"has no model 'no-such-model'; check its name and version, or pass access_token, which"
                fails_at_once(client, PyTritonClientModelUnavailableError, message)
        with ModelClient(url_of(triton, protocol), "no-such-model", access_token=triton.get_access_token()) as client:
            fails_at_once(client, PyTritonClientModelUnavailableError, rf"no-such-model'; it has '{name}'\.$")
        similar = name.upper()
        with ModelClient(url_of(triton, protocol), similar) as client:
            fails_at_once(client, PyTritonClientModelUnavailableError, rf"Did you mean '{name}'\?$")
        with ModelClient(url_of(triton, protocol), similar, access_token=triton.get_access_token()) as client:
            message = rf"no model '{similar}'; it has '{name}'\. Did you mean '{name}'\?"
            fails_at_once(client, PyTritonClientModelUnavailableError, message)


@every_kind
@pytest.mark.parametrize("ensure_model_is_ready", [True, False])
def test_the_port_of_the_other_protocol(triton, kind, protocol, ensure_model_is_ready):
    other = {"http": "grpc", "grpc": "http"}[protocol]
    url = url_of(triton, other)
    with open_client(
        kind, url.replace(other, protocol), "any", init_timeout_s=60, ensure_model_is_ready=ensure_model_is_ready
    ) as client:
        spoken = {"http": "HTTP", "grpc": "gRPC"}[other]
        error = fails_at_once(
            client, PyTritonClientInferenceServerError, rf"is a port of {spoken}; use {url}, or the server's port for"
        )
        assert error.failure is Failure.MALFORMED


@pytest.mark.parametrize("wait", ["wait_for_server", "wait_for_model"])
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_the_port_for_metrics_is_not_ready(triton, kind, wait):
    """It responds to every path with status 200."""
    with (
        open_client(kind, f"http://{HOST}:{triton.config.metrics_port}", "any") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="is a port for metrics"),
    ):
        getattr(client, wait)(60)


def test_a_proxy_that_hides_the_metadata_of_its_server_is_ready():
    ready = [b"GET /v2/health/ready"]

    def behave(connection):
        while request := connection.recv(65536):
            status = "200 OK" if any(map(request.startswith, ready)) else "404 Not Found"
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    with listening(behave) as port, ModelClient(f"http://{HOST}:{port}", "any") as client:
        client.wait_for_server(60)


def test_the_port_of_the_other_protocol_while_waiting(triton, protocol):
    other = {"http": "grpc", "grpc": "http"}[protocol]
    with ModelClient(url_of(triton, other).replace(other, protocol), "any") as client:
        for wait in (client.wait_for_model, client.wait_for_server):
            with pytest.raises(PyTritonClientInferenceServerError, match="is a port of"):
                wait(60)


def speaking(status, body=b"", headers=""):
    """Responds to each HTTP request like another program."""

    def behave(connection):
        head = f"HTTP/1.1 {status}\r\nServer: other/1.0\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        while request := connection.recv(65536):
            connection.sendall(head.encode() + body)
            if is_last(request):
                return

    return behave


def saying(greeting):
    """Sends some bytes, as a program does that does not speak HTTP."""

    def behave(connection):
        connection.sendall(greeting)
        silent(connection)

    return behave


OTHER_PROGRAMS = {
    "JSON": (speaking("404 Not Found", b'{"detail":"Not Found"}'), r'status 404 from \'other/1\.0\', {"detail":"Not F'),
    "an error like Triton's": (speaking("404 Not Found", b'{"error":"Not Found"}'), r"status 404 from 'other/1\.0', "),
    "nothing": (speaking("404 Not Found"), r"status 404 from 'other/1\.0'\."),
    "a page": (
        speaking("404 Not Found", b"<html>none</html>", "Content-Type: text/html\r\n"),
        "status 404 .*<html>none",
    ),
    "a redirect": (
        speaking("301 Moved", headers="Location: https://example.com/\r\n"),
        "status 301 .* redirect to 'https://example.com/'",
    ),
    "a login": (speaking("401 Unauthorized", b"who are you?"), "status 401 .* who are you"),
}


@pytest.mark.parametrize("program", OTHER_PROGRAMS)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_another_http_server(kind, program):
    behave, said = OTHER_PROGRAMS[program]
    with listening(behave) as port, open_client(kind, f"http://{HOST}:{port}", "any") as client:
        started = time.monotonic()
        message = (
            rf"{port} does not respond like Triton.*{said}.*Check that the server is running, and its address and port"
        )
        with pytest.raises(PyTritonClientInferenceServerError, match=message) as caught:
            client.infer_sample([1])
        assert OTHER_PROGRAM_S < time.monotonic() - started < OTHER_PROGRAM_S + AT_ONCE_S
        assert caught.value.failure is Failure.MALFORMED


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    "body", [b"<html>home</html>", b'{"status": "ok"}', b'["ok"]'], ids=["a page", "JSON", "a list"]
)
def test_another_http_server_that_responds_to_every_path(kind, body):
    with (
        listening(speaking("200 OK", body)) as port,
        open_client(kind, f"http://{HOST}:{port}", "any", init_timeout_s=60) as client,
    ):
        message = rf"{port} does not respond like Triton; .* Its response: .*(home|ok)"
        assert fails_at_once(client, PyTritonClientInferenceServerError, message).failure is Failure.MALFORMED


def test_a_superfluous_path(triton):
    with ModelClient(f"{url_of(triton, 'http')}/models", "any") as client:
        message = r"Its response: status 404.* The path of the URL, '/models', is put before Triton's own\. Check"
        with pytest.raises(PyTritonClientInferenceServerError, match=message):
            client.infer_sample([1])


def test_with_a_timeout_a_client_waits_at_another_http_server(caplog):
    """It may be a proxy that does not know its server yet."""
    with (
        listening(speaking("404 Not Found")) as port,
        ModelClient(f"http://{HOST}:{port}", "any", init_timeout_s=2.5) as client,
        pytest.raises(PyTritonClientTimeoutError, match=r"took longer than 2\.5 s: .* Its response: status 404"),
    ):
        client.infer_sample([1])
    (record,) = [each for each in caplog.records if "does not respond like Triton" in each.getMessage()]
    assert "Still waiting, up to 2.5 s: " in record.getMessage()


def test_a_server_that_does_not_get_ready_is_logged_after_a_while(monkeypatch, caplog):
    monkeypatch.setattr("pytriton.client.core.readiness._PATIENCE_S", 0.5)
    with (
        listening(speaking("503 Service Unavailable")) as port,
        ModelClient(f"http://{HOST}:{port}", "any", init_timeout_s=2.5) as client,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample([1])
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"Still waiting, up to 2.5 s: The server at http://{HOST}:{port} " in record.getMessage()


@pytest.mark.parametrize("status", ["404 Not Found", "502 Bad Gateway", "503 Service Unavailable"])
def test_a_proxy_whose_server_is_starting(triton, name, status):
    bind_floats(triton, name, echo)
    with proxy_of(triton.config.http_port) as (proxy, port), ModelClient(f"http://{HOST}:{port}", name) as client:
        proxy.stand_in(speaking(status))
        response = Background(lambda: client.infer_sample([1]))
        wait_until(lambda: client._session.servers[0].was_left_out)
        proxy.stand_in(None)
        assert response.finish(60).result["y"] == [1]


def test_a_client_waits_for_the_unavailable_server_of_a_proxy():
    with listening(speaking("503 Service Unavailable")) as port, ModelClient(f"http://{HOST}:{port}", "any") as client:
        response = Background(lambda: client.infer_sample([1]))
        response.join(4 * OTHER_PROGRAM_S)
        assert response.is_alive()
        client.close()
        assert isinstance(response.finish().error, PyTritonClientClosedError)


@every_kind
@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            r"speaks neither HTTP nor gRPC, and its response begins with 'SSH-2.0-OpenSSH_9.2",
        ),
        (b"\x00\x01\x02binary", r"speaks neither HTTP nor gRPC, and its response begins with b'\\x00\\x01\\x02binary'"),
    ],
    ids=["text", "bytes"],
)
def test_a_program_without_http(kind, protocol, greeting, said):
    with (
        listening(saying(greeting)) as port,
        open_client(kind, f"{protocol}://{HOST}:{port}", "any", init_timeout_s=60) as client,
    ):
        error = fails_at_once(client, PyTritonClientInferenceServerError, said)
        assert error.failure is Failure.MALFORMED


def test_a_tls_port_without_tls():
    alert = bytes.fromhex("15030100020246")

    def refuse(connection):
        connection.recv(65536)
        connection.sendall(alert)

    with listening(refuse) as port, ModelClient(f"{HOST}:{port}", "any", init_timeout_s=60) as client:
        message = f"http://{HOST}:{port} is a port of TLS; use https://{HOST}:{port}"
        fails_at_once(client, PyTritonClientInferenceServerError, message)


@every_kind
def test_tls_at_a_port_without_tls(triton, kind, protocol):
    url = url_of(triton, protocol)
    with open_client(kind, url.replace("://", "s://"), "any", init_timeout_s=60) as client:
        fails_at_once(client, PyTritonClientInferenceServerError, f"does not speak TLS; use {url}, or")


@every_kind
@pytest.mark.parametrize("ensure_model_is_ready", [True, False])
def test_the_port_for_metrics(triton, kind, protocol, ensure_model_is_ready):
    url = f"{protocol}://{HOST}:{triton.config.metrics_port}"
    arguments = {"init_timeout_s": 60, "ensure_model_is_ready": ensure_model_is_ready}
    with open_client(kind, url, "any", **arguments) as client:
        spoken, default = {"http": ("HTTP", 8000), "grpc": ("gRPC", 8001)}[protocol]
        message = rf"{url} is a port for metrics; use the server's port for {spoken}, which is {default} by default\."
        fails_at_once(client, PyTritonClientInferenceServerError, message)


@every_kind
def test_grpc_at_an_http_server(kind, protocol):
    if protocol == "http":
        return
    with (
        listening(speaking("404 Not Found", b"none", "Connection: close\r\n")) as port,
        open_client(kind, f"grpc://{HOST}:{port}", "any", init_timeout_s=60) as client,
    ):
        fails_at_once(client, PyTritonClientInferenceServerError, "it speaks HTTP/1, not gRPC, with status 404")


def test_a_port_that_closes_connections():
    """Such as a forwarded port without a program behind it."""
    with listening(refusing) as port, ModelClient(f"http://{HOST}:{port}", "any") as client:
        started = time.monotonic()
        with pytest.raises(
            PyTritonClientTimeoutError, match=r"broke before the response .* Check that the server is running"
        ):
            client.infer_sample([1])
        assert OTHER_PROGRAM_S < time.monotonic() - started < OTHER_PROGRAM_S + AT_ONCE_S


@every_kind
def test_a_user_sees_one_exception(triton, name, kind, protocol):
    """Not those that only say how the client found out."""
    bind_floats(triton, name, echo, config=config_for(kind))
    url = url_of(triton, protocol)
    other = {"http": "grpc", "grpc": "http"}[protocol]
    mistakes = [
        (f"{protocol}://{HOST}:1", name, {}, {}),
        (f"{protocol}://no-such-host.invalid", name, {}, {}),
        (url_of(triton, other).replace(other, protocol), name, {}, {}),
        (url, "no-such-model", {}, {}),
        (url, "no-such-model", {"ensure_model_is_ready": False}, {}),
        (url, name, {}, {"outputs": ["z"]}),
        (url, name, {}, {"x": [[1], [1, 2]]}),
        (url, "no-such-model", known(kind), {}),
    ]
    for where, model, settings, options in mistakes:
        shows_one_exception(kind, where, model, settings, options)
    for behave in (silent, refusing, speaking("404 Not Found")):
        with listening(behave) as port:
            shows_one_exception(kind, f"{protocol}://{HOST}:{port}", name, known(kind), {"timeout_s": 0.2})


def shows_one_exception(kind, url, model, settings, options):
    with open_client(kind, url, model, **settings) as client, pytest.raises(PyTritonClientError) as caught:
        client.infer_sample(**{"x": [1], **options})
    inner = chain_of(caught.value)[1:]
    assert not inner or (len(inner) == 1 and isinstance(inner[0], OSError)), inner  # the system's own says more


def chain_of(error):
    """The exceptions that Python shows, the last first."""
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain
