"""The settings of the server's endpoints, one by one."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc
from server_settings import REQUEST, X, covers, double_served, fetch, listening
from serving import (
    HOST,
    Background,
    InferenceServerException,
    bind_floats,
    client_of,
    send_floats,
    server_of,
    wait_until,
)

from pytriton.model_config import ModelConfig


@covers("allow_http", "allow_grpc", "allow_metrics")
@pytest.mark.parametrize("off", ["http", "grpc", "metrics"])
def test_disabled_endpoints_do_not_listen(off):
    with double_served(**{f"allow_{off}": False}) as triton:
        wanted = {getattr(triton.config, f"{each}_port") for each in ("http", "grpc", "metrics") if each != off}
        assert set(listening(triton)) == wanted


@covers("http_address", "grpc_address", "metrics_address")
def test_each_endpoint_has_its_own_address():
    addresses = {"http": "127.0.0.1", "grpc": "127.0.0.2", "metrics": "127.0.0.3"}
    with double_served(**{f"{each}_address": address for each, address in addresses.items()}) as triton:
        where = {port: ip.removeprefix("::ffff:") for port, ip in listening(triton).items()}
        assert where == {getattr(triton.config, f"{each}_port"): address for each, address in addresses.items()}
        assert send_floats(triton, "double", [1]) == [2]


@covers("http_thread_count", "buffer_manager_thread_count")
def test_the_number_of_threads_is_that_of_the_settings():
    with (
        double_served(http_thread_count=1, buffer_manager_thread_count=1) as few,
        double_served(http_thread_count=30, buffer_manager_thread_count=1) as more,
        double_served(http_thread_count=30, buffer_manager_thread_count=60) as most,
    ):
        assert [send_floats(triton, "double", [1]) for triton in (few, more, most)] == [[2]] * 3
        counts = [server_of(triton).num_threads() for triton in (few, more, most)]
    assert counts[1] - counts[0] > 20
    assert counts[2] - counts[1] > 40


def test_there_may_be_more_requests_than_threads():
    entered = threading.Semaphore(0)
    gate = threading.Event()

    def hold(requests):
        entered.release()
        assert gate.wait(30)
        return requests

    with double_served(http_thread_count=1) as triton:
        bind_floats(triton, "hold", [hold] * 4, config=ModelConfig(batching=False))
        body = REQUEST.replace(b"[1, 1]", b"[1]")
        requests = [Background(lambda: fetch(triton.config.http_port, "/v2/models/hold/infer", body)) for _ in range(4)]
        try:
            assert all(entered.acquire(timeout=30) for _ in requests), "all are served at the same time"
        finally:
            gate.set()
        assert [request.finish().result[0] for request in requests] == [200] * 4


@covers("http_header_forward_pattern", "grpc_header_forward_pattern")
def test_headers_that_match_the_pattern_of_their_protocol_become_parameters():
    seen = []

    def keep(requests):
        seen.extend(request.parameters for request in requests)
        return requests

    patterns = {"http_header_forward_pattern": "(?i)x-http-.*", "grpc_header_forward_pattern": "x-grpc-.*"}
    headers = {"x-http-user": "ann", "x-grpc-user": "bob", "authorization": "secret"}
    with double_served(**patterns) as triton:
        bind_floats(triton, "keep", keep)
        with client_of(triton, "http") as client:
            client.infer("keep", {"x": X}, headers=dict(headers), parameters={"n": 1})
        with client_of(triton, "grpc") as client:
            client.infer("keep", {"x": X}, headers=headers, parameters={"n": 2})

    assert seen == [{"x-http-user": "ann", "n": 1}, {"x-grpc-user": "bob", "n": 2}]


@covers("grpc_infer_allocation_pool_size")
def test_there_may_be_more_requests_over_grpc_than_the_pool_has():
    with double_served(grpc_infer_allocation_pool_size=1) as triton, client_of(triton, "grpc") as client:
        requests = [Background(lambda n=n: client.infer("double", {"x": X * n})["y"].item()) for n in range(12)]
        assert [request.finish().result for request in requests] == [2 * n for n in range(12)]


@covers(
    "grpc_keepalive_time",
    "grpc_keepalive_timeout",
    "grpc_keepalive_permit_without_calls",
    "grpc_http2_max_pings_without_data",
    "grpc_http2_min_recv_ping_interval_without_data",
    "grpc_http2_max_ping_strikes",
)
def test_a_server_pings_its_clients_and_accepts_their_pings():
    settings = {
        "grpc_keepalive_time": 1_000,
        "grpc_keepalive_timeout": 10_000,
        "grpc_keepalive_permit_without_calls": True,
        "grpc_http2_max_pings_without_data": 0,
        "grpc_http2_min_recv_ping_interval_without_data": 1,
        "grpc_http2_max_ping_strikes": 0,
    }
    with double_served(**settings) as triton, relayed(triton.config.grpc_port) as relay:
        client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{relay.port}")
        try:
            assert client.is_server_ready()
            before = relay.received
            wait_until(lambda: relay.received > before, what="a ping")  # which were not requested
            assert client.is_server_ready()
        finally:
            client.close()


class Relay:
    """Passes what a client and the server say to each other on, and counts the bytes from the server."""

    def __init__(self, port):
        self.received = 0
        self._port = port
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._port))
                threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source, target, counted):
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                self.received += len(data) * counted
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def relayed(port):
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()


@covers("grpc_infer_response_compression_level")
@pytest.mark.parametrize("level", ["none", "low", "high"])
def test_responses_over_grpc_are_compressed(level):
    zeros = np.zeros((1, 1 << 18), np.float32)  # 1 MiB
    with (
        double_served(grpc_infer_response_compression_level=level) as triton,
        relayed(triton.config.grpc_port) as relay,
    ):
        client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{relay.port}")
        try:
            tensor = tritonclient.grpc.InferInput("x", zeros.shape, "FP32").set_data_from_numpy(zeros)
            received = client.infer("double", [tensor], compression_algorithm="gzip").as_numpy("y")
        finally:
            client.close()
    np.testing.assert_array_equal(received, zeros)
    assert (relay.received > zeros.nbytes) == (level == "none")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Self-signed certificates of a server and of a client, with their keys."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client", "stranger"):
        options = {
            "-days": "1",
            "-subj": "/CN=localhost",
            "-addext": "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-newkey": "ec",
            "-pkeyopt": "ec_paramgen_curve:prime256v1",
            "-keyout": folder / f"{name}.key",
            "-out": folder / f"{name}.pem",
        }
        command = ["openssl", "req", "-x509", "-nodes", *(word for option in options.items() for word in option)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def send_over_tls(triton, **options):
    """Sends a request over gRPC and returns the response, or None where no connection comes about."""
    client = tritonclient.grpc.InferenceServerClient(f"localhost:{triton.config.grpc_port}", **options)
    try:
        tensor = tritonclient.grpc.InferInput("x", X.shape, "FP32").set_data_from_numpy(X)
        return client.infer("double", [tensor]).as_numpy("y").item()
    except InferenceServerException as error:
        assert "UNAVAILABLE" in str(error.status())
        return None
    finally:
        client.close()


@covers("grpc_use_ssl", "grpc_server_cert", "grpc_server_key")
@pytest.mark.parametrize("mutual", [None, False])
def test_grpc_over_tls_requires_clients_that_trust_the_certificate(certificates, mutual):
    settings = {"grpc_server_cert": certificates / "server.pem", "grpc_server_key": certificates / "server.key"}
    with double_served(grpc_use_ssl=True, grpc_use_ssl_mutual=mutual, **settings) as triton:
        assert send_over_tls(triton, ssl=True, root_certificates=str(certificates / "server.pem")) == 2
        assert send_over_tls(triton, ssl=True, root_certificates=str(certificates / "stranger.pem")) is None
        assert send_over_tls(triton) is None
        assert send_floats(triton, "double", [1]) == [2], "HTTP is as it was"


@covers("grpc_use_ssl_mutual", "grpc_root_cert")
def test_grpc_over_mutual_tls_requires_clients_that_the_server_trusts(certificates):
    settings = {
        "grpc_use_ssl_mutual": True,
        "grpc_server_cert": certificates / "server.pem",
        "grpc_server_key": certificates / "server.key",
        "grpc_root_cert": certificates / "client.pem",
    }

    def shown(name):
        key, chain = (str(certificates / f"{name}.{kind}") for kind in ("key", "pem"))
        return {"private_key": key, "certificate_chain": chain}

    root = {"ssl": True, "root_certificates": str(certificates / "server.pem")}
    with double_served(**settings) as triton:
        assert send_over_tls(triton, **root, **shown("client")) == 2
        assert send_over_tls(triton, **root, **shown("stranger")) is None
        assert send_over_tls(triton, **root) is None
