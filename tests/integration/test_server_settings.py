"""What each setting of the server does; where nothing shows it, that the real server takes it and serves."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from serving import (
    HOST,
    Background,
    InferenceServerException,
    bind_floats,
    client_of,
    connection_to,
    request_json,
    running_triton,
    send_floats,
    server_of,
    wait_until,
)
from worker_models import write_model

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.model_config import ModelConfig
from pytriton.server.files import find_server
from pytriton.triton import TritonConfig

X = np.ones((1, 1), np.float32)
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
double = batch(lambda x: [x * 2])

# Fields whose tests are elsewhere.
ELSEWHERE = {
    "http_port": "test_lifecycle.py",
    "grpc_port": "test_lifecycle.py",
    "metrics_port": "test_lifecycle.py",
    "http_restricted_api": "test_security.py",
    "grpc_restricted_protocol": "test_security.py",
}
_covered = set()


def covers(*fields):
    """Says which settings a test is about."""
    assert set(fields) <= {field.name for field in dataclasses.fields(TritonConfig)}
    _covered.update(fields)
    return lambda test: test


@contextlib.contextmanager
def double_served(**settings):
    """A server with these settings that serves the model ``double``."""
    with running_triton(**settings) as triton:
        bind_floats(triton, "double", double)
        triton.run()
        yield triton


def fetch(port, path, body=None, headers=None):
    """Speaks HTTP with any of the server's ports: returns status and content."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def metrics_text(triton):
    return fetch(triton.config.metrics_port, "/metrics")[1]


def listening(triton):
    """Where the server listens: addresses by port."""
    found = server_of(triton).net_connections("tcp")
    return {each.laddr.port: each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}


@covers("id")
def test_the_server_is_called_by_its_id():
    with double_served(id="the-server-✓") as triton:
        assert request_json(triton, "GET", "/v2")[1]["name"] == "the-server-✓"
        with client_of(triton, "grpc") as client:
            assert client.raw.get_server_metadata().name == "the-server-✓"


@covers("log_file", "log_verbose")
@pytest.mark.parametrize("level", [0, 1])
def test_the_log_goes_to_a_file_with_as_much_as_is_wanted(tmp_path, level, caplog):
    file = tmp_path / "server log"
    with (
        caplog.at_level("DEBUG", "pytriton.server.tritonserver"),
        double_served(log_file=file, log_verbose=level) as triton,
    ):
        assert send_floats(triton, "double", [1]) == [2]

        assert "Started HTTPService" in file.read_text()
        wait_until(lambda: ("/v2/models/double/infer" in file.read_text()) == bool(level))
    assert "Started HTTPService" not in caplog.text


@covers("log_verbose")
def test_verbose_lines_go_to_the_log_of_python(caplog):
    with caplog.at_level("DEBUG", "pytriton.server.tritonserver"), double_served(log_verbose=1) as triton:
        assert send_floats(triton, "double", [1]) == [2]
        wait_until(lambda: "/v2/models/double/infer" in caplog.text)


@covers("exit_timeout_secs")
def test_stop_waits_for_requests_for_as_long_as_the_exit_timeout_and_not_for_idle_connections():
    with double_served(exit_timeout_secs=60) as triton, connection_to(triton) as connection:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        stopping = Background(triton.stop)
        assert stopping.finish(15).result is True


@covers("strict_readiness", "exit_on_error")
@pytest.mark.parametrize("strict", [True, False])
def test_a_model_that_cannot_be_loaded_makes_a_strict_server_unready_and_ends_none(strict, monkeypatch):
    with double_served(strict_readiness=strict, exit_on_error=strict) as triton:
        assert fetch(triton.config.http_port, "/v2/health/ready")[0] == 200
        # Of an instance of the model, which is refused when it registers.
        monkeypatch.setattr("pytriton.proxy.registry.PROTOCOL_VERSION", 0)
        with pytest.raises(PyTritonInvalidOperationError):
            bind_floats(triton, "refused", double)

        assert fetch(triton.config.http_port, "/v2/health/ready")[0] == (400 if strict else 200)
        assert fetch(triton.config.http_port, "/v2/health/live")[0] == 200
        assert send_floats(triton, "double", [1]) == [2]


@covers("allow_http", "allow_grpc", "allow_metrics")
@pytest.mark.parametrize("off", ["http", "grpc", "metrics"])
def test_what_is_not_allowed_does_not_listen(off):
    with double_served(**{f"allow_{off}": False}) as triton:
        wanted = {getattr(triton.config, f"{each}_port") for each in ("http", "grpc", "metrics") if each != off}
        assert set(listening(triton)) == wanted


@covers("http_address", "grpc_address", "metrics_address")
def test_each_endpoint_has_an_address_of_its_own():
    addresses = {"http": "127.0.0.1", "grpc": "127.0.0.2", "metrics": "127.0.0.3"}
    with double_served(**{f"{each}_address": address for each, address in addresses.items()}) as triton:
        where = {port: ip.removeprefix("::ffff:") for port, ip in listening(triton).items()}
        assert where == {getattr(triton.config, f"{each}_port"): address for each, address in addresses.items()}
        assert send_floats(triton, "double", [1]) == [2]


@covers("http_thread_count", "buffer_manager_thread_count")
def test_threads_are_as_many_as_wanted():
    with (
        double_served(http_thread_count=1, buffer_manager_thread_count=1) as few,
        double_served(http_thread_count=30, buffer_manager_thread_count=1) as more,
        double_served(http_thread_count=30, buffer_manager_thread_count=60) as most,
    ):
        assert [send_floats(triton, "double", [1]) for triton in (few, more, most)] == [[2]] * 3
        counts = [server_of(triton).num_threads() for triton in (few, more, most)]
    assert counts[1] - counts[0] > 20
    assert counts[2] - counts[1] > 40


def test_requests_may_be_more_than_the_threads_that_take_them():
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
def test_headers_that_fit_the_pattern_of_their_protocol_become_parameters():
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
def test_requests_over_grpc_may_be_more_than_the_pool_of_requests():
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
def test_a_server_pings_its_clients_and_takes_their_pings():
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
            wait_until(lambda: relay.received > before, what="a ping")  # which nobody asked for
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


def ask_over_tls(triton, **options):
    """Sends a request over gRPC and returns the answer, or None where no connection comes about."""
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
def test_grpc_over_tls_is_for_clients_that_know_the_certificate(certificates, mutual):
    settings = {"grpc_server_cert": certificates / "server.pem", "grpc_server_key": certificates / "server.key"}
    with double_served(grpc_use_ssl=True, grpc_use_ssl_mutual=mutual, **settings) as triton:
        assert ask_over_tls(triton, ssl=True, root_certificates=str(certificates / "server.pem")) == 2
        assert ask_over_tls(triton, ssl=True, root_certificates=str(certificates / "stranger.pem")) is None
        assert ask_over_tls(triton) is None
        assert send_floats(triton, "double", [1]) == [2], "HTTP is as it was"


@covers("grpc_use_ssl_mutual", "grpc_root_cert")
def test_grpc_over_mutual_tls_is_for_clients_that_the_server_knows(certificates):
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
        assert ask_over_tls(triton, **root, **shown("client")) == 2
        assert ask_over_tls(triton, **root, **shown("stranger")) is None
        assert ask_over_tls(triton, **root) is None


@covers("allow_cpu_metrics", "allow_gpu_metrics")
def test_metrics_do_not_tell_of_what_is_not_allowed():
    with double_served(allow_cpu_metrics=False, allow_gpu_metrics=False) as triton:
        text = metrics_text(triton)
        assert "nv_inference_count" in text
        assert "nv_cpu_" not in text
        assert "nv_gpu_" not in text


@covers("allow_cpu_metrics", "metrics_interval_ms")
def test_the_cpu_is_measured_in_the_interval_of_the_metrics():
    def used(triton):
        lines = metrics_text(triton).splitlines()
        return next(line.split()[-1] for line in lines if line.startswith("nv_cpu_memory_used_bytes "))

    with double_served(allow_cpu_metrics=True, metrics_interval_ms=10) as triton:
        # Every two seconds by default; what other processes take keeps changing.
        measured = {used(triton)}
        start = time.monotonic()
        wait_until(lambda: measured.add(used(triton)) or len(measured) > 3)
        assert time.monotonic() - start < 4


@covers("metrics_config")
def test_metrics_are_those_of_the_metrics_config():
    with double_served(metrics_config=["summary_latencies=true", "counter_latencies=false"]) as triton:
        assert send_floats(triton, "double", [1]) == [2]
        text = metrics_text(triton)
        assert "nv_inference_request_summary_us_count" in text
        assert "nv_inference_request_duration_us{" not in text


@covers("trace_config")
def test_requests_are_traced_as_the_trace_config_says(tmp_path):
    file = tmp_path / "trace.json"
    config = [f"triton,file={file}", "rate=1", "level=TIMESTAMPS", "count=2"]
    with double_served(trace_config=config) as triton:
        for _ in range(3):
            assert send_floats(triton, "double", [1]) == [2]
    (written,) = tmp_path.iterdir()
    events = json.loads(written.read_text())
    assert {event["model_name"] for event in events if "model_name" in event} == {"double"}
    assert len({event["id"] for event in events}) == 2
    names = {stamp["name"] for event in events for stamp in event.get("timestamps", ())}
    assert {"REQUEST_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"} <= names


@covers("cache_config")
def test_the_response_cache_is_that_of_the_cache_config():
    # What it does is told in test_response_cache.py.
    with (
        pytest.raises(PyTritonRuntimeError, match=r"libtritoncache_nonsense\.so"),
        double_served(cache_config=["nonsense,size=1"]),
    ):
        pass


@covers("cache_directory")
def test_caches_are_looked_for_in_their_directory(tmp_path):
    calls = []

    @batch
    def keep(x):
        calls.append(len(x))
        return [x]

    shutil.copytree(find_server().caches / "local", tmp_path / "caches" / "local")
    with double_served(cache_directory=str(tmp_path / "caches"), cache_config=["local,size=1048576"]) as triton:
        bind_floats(triton, "cached", keep, config=ModelConfig(response_cache=True))
        assert [send_floats(triton, "cached", [1]) for _ in range(3)] == [[1]] * 3
        assert calls == [1]

    with (
        pytest.raises(PyTritonRuntimeError, match=r"libtritoncache_local\.so"),
        double_served(cache_directory=str(tmp_path), cache_config=["local,size=1048576"]),
    ):
        pass


@covers("allow_sagemaker", "sagemaker_port", "sagemaker_safe_port_range", "sagemaker_thread_count")
def test_sagemakers_api_is_served(monkeypatch):
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "double")
    settings = {"sagemaker_port": 0, "sagemaker_safe_port_range": "1024-65535", "sagemaker_thread_count": 2}
    with double_served(allow_sagemaker=True, **settings) as triton:
        port = triton.config.sagemaker_port
        assert fetch(port, "/ping")[0] == 200
        status, answer = fetch(port, "/invocations", REQUEST, {"Content-Type": "application/json"})
        assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [2])
        assert send_floats(triton, "double", [1]) == [2]


@covers("sagemaker_safe_port_range")
def test_ports_beside_sagemakers_are_within_its_range():
    settings = {"sagemaker_port": 0, "sagemaker_safe_port_range": "1-2"}
    with (
        pytest.raises(PyTritonRuntimeError, match=r"allowed port range is \[1, 2\]"),
        double_served(allow_sagemaker=True, **settings),
    ):
        pass


@pytest.fixture
def vertex_ai_routes(monkeypatch):
    """The paths of Vertex AI's API, which the server reads from the environment."""
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")


@covers("allow_vertex_ai", "vertex_ai_port", "vertex_ai_thread_count", "vertex_ai_default_model")
def test_vertex_ais_api_is_served_beside_the_others(vertex_ai_routes):
    settings = {"vertex_ai_port": 0, "vertex_ai_thread_count": 2, "vertex_ai_default_model": "double"}
    with running_triton(allow_vertex_ai=True, **settings) as triton:
        bind_floats(triton, "increment", batch(lambda x: [x + 1]))
        bind_floats(triton, "double", double)
        triton.run()

        port = triton.config.vertex_ai_port
        assert fetch(port, "/health")[0] == 200
        status, answer = fetch(port, "/predict", REQUEST, {"Content-Type": "application/json"})
        assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [2])
        assert [send_floats(triton, each, [3]) for each in ("double", "increment")] == [[6], [4]]
        with client_of(triton, "grpc") as client:
            assert client.infer("double", {"x": X})["y"].item() == 2


@covers("vertex_ai_default_model")
def test_a_default_model_of_vertex_ai_that_is_not_bound_is_told(vertex_ai_routes):
    with running_triton(allow_vertex_ai=True, vertex_ai_port=0, vertex_ai_default_model="triple") as triton:
        bind_floats(triton, "double", double)
        with pytest.raises(PyTritonRuntimeError, match="the default model 'triple'"):
            triton.run()


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [-1] }
output { name: "y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step {
    model_name: "double" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "doubled" }
  }
  step {
    model_name: "increment" model_version: -1
    input_map { key: "x" value: "doubled" } output_map { key: "y" value: "y" }
  }
}
"""


@pytest.fixture
def repository(tmp_path):
    """A model repository with an ensemble of bound models, which is a configuration alone."""
    (tmp_path / "repository" / "both" / "1").mkdir(parents=True)
    (tmp_path / "repository" / "both" / "config.pbtxt").write_text(ENSEMBLE)
    (tmp_path / "repository" / ".hidden").mkdir()
    (tmp_path / "repository" / "README").write_text("no model")
    return tmp_path / "repository"


@covers("model_repository")
def test_models_of_the_users_own_may_be_made_of_bound_ones(repository):
    triton = running_triton(model_repository=repository)
    bind_floats(triton, "double", double)
    bind_floats(triton, "increment", batch(lambda x: [x + 1]))
    for _ in range(2):
        with triton:
            triton.run()
            for protocol in ("http", "grpc"):
                with client_of(triton, protocol) as client:
                    assert client.infer("both", {"x": np.array([[1, 2]], np.float32)})["y"].tolist() == [[3, 5]]
    assert sorted(path.name for path in repository.iterdir()) == [".hidden", "README", "both"], "it stays as it was"


@covers("backend_config")
def test_settings_reach_their_backend(tmp_path):
    # What the settings of the backend "python" do is told in python_backend/.
    write_model(tmp_path, "model")
    with (
        pytest.raises(PyTritonInvalidOperationError, match="/no/such/python is not a program"),
        double_served(model_repository=tmp_path, backend_config=["python,python-runtime=/no/such/python"]),
    ):
        pass


@covers("model_repository")
def test_an_ensemble_is_made_of_what_is_bound_now(repository):
    with both_served(repository) as triton:
        assert send_floats(triton, "both", [1]) == [3]
        bind_floats(triton, "increment", batch(lambda x: [x + 10]))
        assert send_floats(triton, "both", [1]) == [12]


@covers("model_repository")
def test_an_error_within_an_ensemble_reaches_the_client(repository):
    def fail(requests):
        raise ValueError("no increment today")

    with both_served(repository) as triton:
        bind_floats(triton, "increment", fail)
        assert "'increment': ValueError: no increment today" in send_floats(triton, "both", [1])


@covers("model_repository")
def test_an_ensemble_of_what_is_not_bound_is_refused_by_run(repository):
    with (
        pytest.raises(PyTritonInvalidOperationError, match=r"cannot load model 'both' from .*increment"),
        double_served(model_repository=repository),
    ):
        pass


@contextlib.contextmanager
def both_served(repository):
    with running_triton(model_repository=repository) as triton:
        bind_floats(triton, "double", double)
        bind_floats(triton, "increment", batch(lambda x: [x + 1]))
        triton.run()
        yield triton


def test_many_settings_together_are_served_and_are_flags_of_the_server(tmp_path):
    settings = {
        "id": "all",
        "log_verbose": 1,
        "log_file": tmp_path / "log",
        "exit_timeout_secs": 3,
        "exit_on_error": True,
        "strict_readiness": True,
        "http_address": HOST,
        "http_thread_count": 3,
        "http_header_forward_pattern": ".*",
        "grpc_address": HOST,
        "grpc_header_forward_pattern": ".*",
        "grpc_infer_allocation_pool_size": 4,
        "grpc_infer_response_compression_level": "medium",
        "grpc_keepalive_time": 60_000,
        "allow_gpu_metrics": False,
        "allow_cpu_metrics": False,
        "metrics_interval_ms": 500,
        "metrics_config": ["summary_latencies=true"],
        "trace_config": ["level=OFF"],
        "cache_config": ["local,size=1048576"],
        "buffer_manager_thread_count": 2,
    }
    with double_served(**settings) as triton:
        assert send_floats(triton, "double", [1]) == [2]
        flags = server_of(triton).cmdline()
        for field, value in settings.items():
            for each in value if isinstance(value, list) else [value]:
                text = str(each).lower() if isinstance(each, bool) else str(each)
                assert f"--{field.replace('_', '-')}={text}" in flags
                assert getattr(triton.config, field) == value


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TritonConfig)])
def test_no_setting_is_forgotten(field):
    assert (field in _covered) != (field in ELSEWHERE), "a test of it says so by @covers"
