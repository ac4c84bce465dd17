"""Connections: TLS, and the files that they take."""

from __future__ import annotations

import contextlib
import json
import pathlib
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import gateways
import pytest
import serving
from gateways import LIMIT_S, gateway_of

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer

NOTHING = pathlib.Path("/dev/null")

# Prints how many of its silent connections remain, once they are few enough.
CROWD = """
import resource, selectors, signal, socket, sys

host, port, limit = sys.argv[1], *map(int, sys.argv[2:])
signal.alarm(20)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
with selectors.DefaultSelector() as selector:
    for _ in range(400):
        selector.register(socket.create_connection((host, port)), selectors.EVENT_READ)
    while len(selector.get_map()) > limit:
        for key, _ in selector.select():
            selector.unregister(key.fileobj)
    print(len(selector.get_map()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    """Settings of a gateway with a certificate, and the context of its clients."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    return certified(tmp_path_factory.mktemp("tls"))


def certified(folder):
    """Settings of a gateway with a new certificate in a folder, and the context of its clients."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    named = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *made, *named], check=True, capture_output=True)
    settings = {"tls_certificate": str(certificate), "tls_key": str(key)}
    return settings, ssl.create_default_context(cafile=certificate)


def address_of(gateway):
    host, port = gateway.url.rpartition("/")[2].split(":")
    return host, int(port)


def test_https(served, tls):
    settings, context = tls
    with gateway_of(served, **settings) as gateway:
        with urllib.request.urlopen(f"{gateway.url}/health/live", context=context) as response:
            assert gateway.url.startswith("https://")
            assert response.status == 200
        numbers = json.dumps({"x": [1.5] * 500_000}).encode()
        with urllib.request.urlopen(f"{gateway.url}/v1/models/Double", numbers, context=context) as response:
            assert json.load(response) == {"y": [3.0] * 500_000}


def status_of(gateway, context, body):
    try:
        with urllib.request.urlopen(f"{gateway.url}/v1/models/Double", body, context=context) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_an_unread_response_over_tls_counts_as_memory(served, tls):
    settings, context = tls
    large, unread = (json.dumps({"x": [1.5] * count}).encode() for count in (50_000, 2_000_000))
    with gateway_of(served, max_total_body_size=16 << 20, **settings) as gateway:
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            plain.connect(address_of(gateway))
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                connection.sendall(gateways.request("/v1/models/Double", unread))
                assert connection.recv(12) == b"HTTP/1.1 200"
                assert {status_of(gateway, context, large) for _ in range(100)} == {503}
        serving.wait_until(lambda: status_of(gateway, context, large) == 200)


def test_weak_ciphers_are_refused(served, tmp_path):
    settings, context = certified(tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with gateway_of(served, **settings) as gateway:
        context.set_ciphers("ALL:!AESGCM:!CHACHA20:!SHA256:!SHA384:@SECLEVEL=0")
        assert not is_served(gateway, context)
        context.set_ciphers("ALL:@SECLEVEL=0")
        assert is_served(gateway, context)


def test_a_renewed_certificate_is_reloaded(served, tls, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("pytriton.gateway.certificate._RELOAD_S", 0)
    settings, _ = tls
    files = [tmp_path / "live.pem", tmp_path / "live.key"]
    for file, source in zip(files, settings.values(), strict=True):
        shutil.copy(source, file)
    renewed, context = certified(tmp_path)
    with gateway_of(served, **dict(zip(settings, map(str, files), strict=True))) as gateway:
        assert not is_served(gateway, context)
        shutil.copy(renewed["tls_certificate"], files[0])
        assert is_served(gateway, tls[1])  # the key does not belong to it yet
        assert f"The certificate {files[0]} was not reloaded with key {files[1]}" in caplog.text
        pathlib.Path(renewed["tls_key"]).replace(files[1])
        assert is_served(gateway, context)
        files[1].unlink()
        assert is_served(gateway, context)


def test_tls_handshakes_are_limited_in_time(served, tls, caplog):
    settings, context = tls
    with gateway_of(served, read_timeout_s=0.3, **settings) as gateway:
        for beginning in (b"", b"\x16\x03\x01"):
            with socket.create_connection(address_of(gateway), timeout=LIMIT_S) as connection:
                connection.sendall(beginning)
                assert gateways.received(connection) == b""
        with socket.create_connection(address_of(gateway), timeout=LIMIT_S) as connection:
            connection.sendall(gateways.request("/health/live"))
            assert b"HTTP" not in gateways.received(connection)
        with urllib.request.urlopen(f"{gateway.url}/health/live", context=context) as response:
            assert response.status == 200
    assert caplog.records == []


def test_tls_handshakes_count_as_connections(served, tls):
    settings, context = tls
    with gateway_of(served, max_connections=3, **settings) as gateway, contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(socket.create_connection(address_of(gateway), timeout=LIMIT_S))

        established = stack.enter_context(context.wrap_socket(connect(), server_hostname="127.0.0.1"))
        pending = [connect() for _ in range(2)]
        assert gateways.received(connect()) == b""  # at once, long before read_timeout_s
        established.sendall(gateways.request("/health/live", method="GET"))
        assert established.recv(12) == b"HTTP/1.1 200"
        for each in pending:
            each.close()
        serving.wait_until(lambda: is_served(gateway, context))


def test_a_stop_does_not_wait_for_tls_handshakes(served, tls):
    settings, _ = tls
    with gateway_of(served, **settings) as gateway:
        connection = socket.create_connection(address_of(gateway), timeout=LIMIT_S)
        connection.sendall(b"\x16\x03\x01")
    with connection:
        assert gateways.received(connection) == b""


def is_served(gateway, context):
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"{gateway.url}/health/live", context=context) as response,
    ):
        return response.status == 200


@pytest.mark.parametrize("encrypted", [False, True])
def test_silent_connections_leave_files_for_the_rest_of_the_program(served, tls, encrypted):
    settings, context = tls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with gateway_of(served, **settings if encrypted else {}) as gateway, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        lowest = stack.enter_context(NOTHING.open()).fileno()
        limit = lowest + 200
        spare = limit // 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        command = [sys.executable, "-c", CROWD, *map(str, (*address_of(gateway), limit - spare - lowest))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
            assert int(crowd.stdout.readline()) >= 50
            files = [stack.enter_context(NOTHING.open()) for _ in range(spare - 10)]
            assert files[-1].fileno() < limit
            crowd.stdin.close()
            assert crowd.wait(LIMIT_S) == 0
        serving.wait_until(lambda: is_served(gateway, context))


def test_an_unusable_certificate(served, tmp_path):
    config = GatewayConfig(port=0, tls_certificate="nothing.pem", tls_key="nothing.key")
    with pytest.raises(PyTritonRuntimeError, match=r"nothing\.pem"):
        GatewayServer(Gateway(served, config), config)
