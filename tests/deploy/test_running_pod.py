"""The pod's program runs as the manifests say: on a read-only root, with these probes, ports and metrics."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from manifests import Pod, find
from read_only import RunningPod, running
from serving import wait_until

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

SLOW_APP = """
import os, pathlib, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton

triton = Triton()

@batch
def slow(x):
    pathlib.Path(os.environ["TMPDIR"], "begun").touch()
    time.sleep(0.5)
    return {"y": x}

triton.bind("Slow", slow, inputs=[Tensor((-1,), np.float32, "x")], outputs=[Tensor((-1,), np.float32, "y")])
"""


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPod]:
    with running(Pod.of("base"), tmp_path_factory.mktemp("volume")) as program:
        program.wait_until_ready(Pod.of("base").container["startupProbe"]["httpGet"]["path"])
        yield program


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_request_existing_paths(pod: RunningPod, probe: str) -> None:
    path = Pod.of("base").container[probe]["httpGet"]["path"]
    assert pod.status(path) == 200
    assert pod.status(f"{path}s") == 404


def test_models_respond_through_the_gateway(pod: RunningPod) -> None:
    status, body = pod.request(pod.gateway, "/v1/models/Double", '{"x": [1, 2]}')
    assert (status, json.loads(body)) == (200, {"y": [2.0, 4.0]})


def test_gateway_speaks_the_protocol_that_kserve_expects(pod: RunningPod) -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    status, body = pod.request(pod.gateway, "/v2/models/Double/infer", json.dumps({"inputs": [tensor]}))
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == [2.0, 4.0]


def test_everything_but_the_volumes_is_read_only(pod: RunningPod) -> None:
    mounts = Path(f"/proc/{pod.process.pid}/mounts").read_text().splitlines()
    writable = {
        folder
        for _, folder, kind, options, *_ in map(str.split, mounts)
        if options.split(",")[0] == "rw" and not folder.startswith(("/proc", "/dev/pts", "/dev/mqueue", "/sys"))
    }
    root = next(line.split()[3] for line in mounts if line.split()[1] == "/")
    assert root.split(",")[0] == "ro"
    assert str(pod.tmp) in writable
    assert {folder for folder in writable if not folder.startswith("/dev")} == {str(pod.tmp)}


def test_tritons_own_ports_are_inside_the_pod(pod: RunningPod) -> None:
    listening = [
        connection.laddr
        for process in pod.processes()
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    ]
    inside = {address.port for address in listening if address.ip in LOOPBACK}
    assert len(inside) == 2  # HTTP and gRPC
    assert {address.port for address in listening} - inside == {pod.gateway, pod.metrics}


def test_prometheus_has_the_metrics_that_the_autoscaler_queries(pod: RunningPod) -> None:
    (endpoint,) = find("base", "PodMonitor")["spec"]["podMetricsEndpoints"]
    status, metrics = pod.request(pod.metrics, endpoint["path"])
    assert status == 200
    query = find("autoscaling", "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    names = re.findall(r"nv_\w+", query)
    assert names
    for name in names:
        assert f'\n{name}{{model="Double"' in metrics, name


def test_a_request_in_flight_gets_its_response_when_the_pod_is_stopped(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    app = tmp_path / "app.py"
    app.write_text(SLOW_APP)
    drain = {"PYTRITON_TRITON_CONFIG_DRAIN_SECS": "0"}
    with running(Pod.of("base"), volume, app, **drain) as program, concurrent.futures.ThreadPoolExecutor(1) as threads:
        program.wait_until_ready("/health/ready")
        response = threads.submit(program.request, program.gateway, "/v1/models/Slow", '{"x": [1]}')
        wait_until(lambda: program.has("begun"), what="the call of the model")
        assert program.stop() == 0
        assert response.result() == (200, '{"y":[1.0]}')
