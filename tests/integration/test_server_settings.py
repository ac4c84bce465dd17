"""The settings of the server, one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import shutil
import time

import numpy as np
import pytest
from server_settings import COVERED, REQUEST, X, covers, double, double_served, fetch, metrics_text
from serving import (
    HOST,
    Background,
    bind_floats,
    client_of,
    connection_to,
    needs_flags,
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

# Fields whose tests are elsewhere.
ELSEWHERE = {
    "http_port": "test_listening.py",
    "grpc_port": "test_listening.py",
    "metrics_port": "test_listening.py",
    "http_restricted_api": "test_security.py",
    "grpc_restricted_protocol": "test_security.py",
    "restart": "test_restarts.py",
    "restart_limit": "test_restarts.py",
    "drain_secs": "test_stopping.py",
    "memory_limit": "test_hostile_requests.py",
    "backend_directory": "python_backend/test_python_based_backends.py",
    # The bundled server has no flags for these; unit tests use a stand-in that has them.
    "allow_client_shm": "unit/server/test_capabilities.py",
    "http_max_input_size": "unit/server/test_capabilities.py",
    "grpc_infer_thread_count": "unit/server/test_capabilities.py",
    "grpc_max_response_pool_size": "unit/server/test_capabilities.py",
}


@covers("id")
def test_the_server_reports_its_id():
    with double_served(id="the-server-✓") as triton:
        assert request_json(triton, "GET", "/v2")[1]["name"] == "the-server-✓"
        with client_of(triton, "grpc") as client:
            assert client.raw.get_server_metadata().name == "the-server-✓"


@covers("log_file", "log_verbose")
@pytest.mark.parametrize("level", [0, 1])
def test_the_log_goes_to_a_file_with_the_configured_verbosity(tmp_path, level, caplog):
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
def test_stop_waits_for_requests_but_not_for_idle_connections():
    with double_served(exit_timeout_secs=60) as triton, connection_to(triton) as connection:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        stopping = Background(triton.stop)
        assert stopping.finish(15).result is True


@covers("strict_readiness", "exit_on_error")
@pytest.mark.parametrize("strict", [True, False])
def test_a_failed_load_makes_a_strict_server_unready_without_stopping_it(strict, monkeypatch):
    with double_served(strict_readiness=strict, exit_on_error=strict) as triton:
        assert fetch(triton.config.http_port, "/v2/health/ready")[0] == 200
        # Of an instance of the model, which is refused when it registers.
        monkeypatch.setattr("pytriton.proxy.registry.PROTOCOL_VERSION", 0)
        with pytest.raises(PyTritonInvalidOperationError):
            bind_floats(triton, "refused", double)

        assert fetch(triton.config.http_port, "/v2/health/ready")[0] == (400 if strict else 200)
        assert fetch(triton.config.http_port, "/v2/health/live")[0] == 200
        assert send_floats(triton, "double", [1]) == [2]


@covers("allow_cpu_metrics", "allow_gpu_metrics")
def test_disabled_metrics_are_not_reported():
    with double_served(allow_cpu_metrics=False, allow_gpu_metrics=False) as triton:
        text = metrics_text(triton)
        assert "nv_inference_count" in text
        assert "nv_cpu_" not in text
        assert "nv_gpu_" not in text


@covers("allow_cpu_metrics", "metrics_interval_ms")
def test_cpu_metrics_are_measured_at_the_configured_interval():
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
def test_metrics_follow_the_metrics_config():
    with double_served(metrics_config=["summary_latencies=true", "counter_latencies=false"]) as triton:
        assert send_floats(triton, "double", [1]) == [2]
        text = metrics_text(triton)
        assert "nv_inference_request_summary_us_count" in text
        assert "nv_inference_request_duration_us{" not in text


@needs_flags("trace-config")
@covers("trace_config")
def test_requests_are_traced_according_to_the_trace_config(tmp_path):
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
def test_the_response_cache_follows_the_cache_config():
    # Its effect is tested in test_response_cache.py.
    with (
        pytest.raises(PyTritonRuntimeError, match=r"libtritoncache_nonsense\.so"),
        double_served(cache_config=["nonsense,size=1"]),
    ):
        pass


@covers("cache_directory")
def test_caches_are_loaded_from_their_directory(tmp_path):
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


@needs_flags("allow-sagemaker")
@covers("allow_sagemaker", "sagemaker_port", "sagemaker_safe_port_range", "sagemaker_thread_count")
def test_sagemakers_api_is_served(monkeypatch):
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "double")
    settings = {"sagemaker_port": 0, "sagemaker_safe_port_range": "1024-65535", "sagemaker_thread_count": 2}
    with double_served(allow_sagemaker=True, **settings) as triton:
        port = triton.config.sagemaker_port
        assert fetch(port, "/ping")[0] == 200
        status, response = fetch(port, "/invocations", REQUEST, {"Content-Type": "application/json"})
        assert (status, json.loads(response)["outputs"][0]["data"]) == (200, [2])
        assert send_floats(triton, "double", [1]) == [2]


@needs_flags("allow-sagemaker")
@covers("sagemaker_safe_port_range")
def test_other_ports_are_within_sagemakers_range():
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


@needs_flags("allow-vertex-ai")
@covers("allow_vertex_ai", "vertex_ai_port", "vertex_ai_thread_count", "vertex_ai_default_model")
def test_vertex_ais_api_is_served_beside_the_others(vertex_ai_routes):
    settings = {"vertex_ai_port": 0, "vertex_ai_thread_count": 2, "vertex_ai_default_model": "double"}
    with running_triton(allow_vertex_ai=True, **settings) as triton:
        bind_floats(triton, "increment", batch(lambda x: [x + 1]))
        bind_floats(triton, "double", double)
        triton.run()

        port = triton.config.vertex_ai_port
        assert fetch(port, "/health")[0] == 200
        status, response = fetch(port, "/predict", REQUEST, {"Content-Type": "application/json"})
        assert (status, json.loads(response)["outputs"][0]["data"]) == (200, [2])
        assert [send_floats(triton, each, [3]) for each in ("double", "increment")] == [[6], [4]]
        with client_of(triton, "grpc") as client:
            assert client.infer("double", {"x": X})["y"].item() == 2


@needs_flags("allow-vertex-ai")
@covers("vertex_ai_default_model")
def test_an_unbound_default_model_of_vertex_ai_is_reported(vertex_ai_routes):
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
def test_custom_ensembles_may_consist_of_bound_models(repository):
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
def test_settings_of_a_backend_reach_it(tmp_path):
    # The effect of settings of the backend "python" is tested in python_backend/.
    write_model(tmp_path, "model")
    with (
        pytest.raises(PyTritonInvalidOperationError, match="/no/such/python is not a program"),
        double_served(model_repository=tmp_path, backend_config=["python,python-runtime=/no/such/python"]),
    ):
        pass


@covers("model_repository")
def test_an_ensemble_uses_the_current_bindings(repository):
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
def test_run_refuses_an_ensemble_of_unbound_models(repository):
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


def test_many_settings_together_become_flags_of_a_working_server(tmp_path):
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
def test_every_setting_is_tested(field):
    importlib.import_module("test_endpoint_settings")  # whose tests are not collected where this one runs by itself
    assert (field in COVERED) != (field in ELSEWHERE), "a test of it says so by @covers"
