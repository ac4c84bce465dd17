"""A Ray cluster as ``ray start`` makes it, with the applications of ``deploy/ray/serve.yaml``."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from manifests import DEPLOY
from serving import free_ports, wait_until

from pytriton.client import ModelClient

pytest.importorskip("ray.serve")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("ray_cluster")]

RAY = DEPLOY / "ray"
BIN = Path(sys.executable).parent
START_S = 90.0


class RunningCluster:
    """A cluster of one node, and what is said to it on command lines.

    Attributes:
        config: The config file of Ray Serve, with ports that are free here.
        gateway: The gateway's port.
        address: Where the cluster is.
        environment: The variables of programs for it.
        targets: The port of the targets.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        node, self._dashboard, agent, client, self.gateway, self.targets = free_ports(6)
        self.address = f"127.0.0.1:{node}"
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "PYTHONPATH": str(RAY),
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 64,
            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{self._dashboard}",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.environment.pop("RAY_ADDRESS", None)
        self.config = yaml.safe_load((RAY / "serve.yaml").read_text())
        _, gateway, targets = self.config["applications"]
        gateway["args"] |= {"host": "127.0.0.1", "port": self.gateway, "drain_secs": 0}
        targets["args"] |= {"host": "127.0.0.1", "port": self.targets}
        options = {
            "node-ip-address": "127.0.0.1",
            "port": node,
            "dashboard-port": self._dashboard,
            "dashboard-agent-listen-port": agent,
            "ray-client-server-port": client,
            "num-cpus": 4,
            "resources": '{"gateway": 1}',
            "min-worker-port": 0,
            "max-worker-port": 0,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", *words],
            cwd=folder,  # programs of the cluster import modules of the folder in which it was started
            env=self.environment,
            stdout=(folder / "head.log").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def command(self, *words: str | Path, check: bool = True) -> str:
        """Runs a program, and returns what it prints."""
        done = subprocess.run(
            [BIN / words[0], *words[1:]], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    def pytriton(self, *words: str) -> str:
        """Runs ``pytriton ray``."""
        return self.command("pytriton", "ray", *words, "--address", self.address)

    @contextlib.contextmanager
    def running(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        """A program that runs until the end of the block."""
        process = subprocess.Popen(
            [BIN / words[0], *words[1:]], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()

    def deploy(self, config: dict[str, Any]) -> None:
        """Does ``serve deploy``."""
        file = self._folder / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        wait_until(
            lambda: "Sent deploy" in self.command("serve", "deploy", file, check=False), START_S, "the dashboard"
        )

    def applications(self) -> Any:
        """What the dashboard shows of Ray Serve."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._dashboard}/api/serve/applications/",
            headers={"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)["applications"]

    def states(self) -> dict[str, str]:
        """The state of each application."""
        return {name: application["status"] for name, application in self.applications().items()}

    def pool(self) -> Any:
        """The pool's status."""
        (status,) = json.loads(self.pytriton("status", "double", "--json"))
        return status

    def replicas(self) -> set[str]:
        """The names of the pool's replicas that are ready."""
        return {each["id"] for each in self.pool()["replicas"] if each["is_ready"]}

    def ask(self, value: float) -> float:
        """Sends a request through the gateway."""
        body = json.dumps({"x": [value]}).encode()
        url = f"http://127.0.0.1:{self.gateway}/v1/models/Double"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as response:
            (answer,) = json.load(response)["y"]
            return float(answer)

    def stop(self) -> None:
        """Stops all its processes."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a short name: Ray's sockets are below it
    running = RunningCluster(folder)
    try:
        running.deploy(running.config)
        expected = dict.fromkeys(("double", "gateway", "targets"), "RUNNING")
        wait_until(lambda: running.states() == expected, START_S, what="all applications to run")
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_clients_reach_the_tritons_themselves(cluster: RunningCluster) -> None:
    for replica in cluster.pool()["replicas"]:
        with ModelClient(replica["http"], "Double") as client:
            np.testing.assert_array_equal(client.infer_sample(np.float32([1, 2]))["y"], [2, 4])


def test_gateway_serves_the_pool(cluster: RunningCluster) -> None:
    assert cluster.ask(21) == 42
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.gateway}/health/ready", timeout=20) as response:
        assert response.status == 200


def test_dashboard_shows_the_pool_as_an_application(cluster: RunningCluster) -> None:
    application = cluster.applications()["double"]
    (deployment,) = application["deployments"].values()
    assert deployment["status"] == "HEALTHY"
    assert {each["state"] for each in deployment["replicas"]} == {"RUNNING"}
    assert {each["replica_id"] for each in deployment["replicas"]} == cluster.replicas()
    assert cluster.command("serve", "status").count("status: RUNNING") == 3


def test_status_is_a_table(cluster: RunningCluster) -> None:
    first, header, *rows = cluster.pytriton("status").splitlines()
    assert first == "Pool double: RUNNING (2 RUNNING)"
    assert header.split()[:3] == ["REPLICA", "NODE", "READY"]
    assert {row.split()[0] for row in rows} == cluster.replicas()


def test_targets_are_the_same_everywhere(cluster: RunningCluster, tmp_path: Path) -> None:
    def read(text: str | bytes) -> list[str]:
        return sorted(target for group in json.loads(text) for target in group["targets"])

    expected = sorted(replica["metrics"] for replica in cluster.pool()["replicas"])
    assert read(cluster.pytriton("targets")) == expected
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.targets}/", timeout=20) as response:
        assert read(response.read()) == expected
    file = tmp_path / "targets.json"
    with cluster.running("pytriton", "ray", "targets", "--file", file, "--address", cluster.address):
        wait_until(file.exists, 30, what="the file")
        assert read(file.read_text()) == expected


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_collects_the_metrics_of_all_replicas(cluster: RunningCluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = ("pytriton", "ray", "targets", "double", "--listen", "127.0.0.1:0", "--address", cluster.address)
    with cluster.running(*words) as discovery:
        assert discovery.stdout is not None
        url = discovery.stdout.readline().split()[-1]
        job = {
            "job_name": "pytriton",
            "scrape_interval": "1s",
            "http_sd_configs": [{"url": url, "refresh_interval": "1s"}],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
        arguments = [
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (tmp_path / "log").open("w") as log:
            prometheus = subprocess.Popen(["prometheus", *arguments], stderr=log, stdout=log)

        def collected() -> set[str]:
            query = "nv_inference_request_success{pool='double'}".replace("'", "%22")
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=5
                ) as response:
                    series = json.load(response)["data"]["result"]
                return {each["metric"]["replica"] for each in series}
            return set()

        try:
            wait_until(lambda: collected() == cluster.replicas(), 60, what="the metrics of all replicas")
        finally:
            prometheus.terminate()
            prometheus.wait(20)


def test_edited_files_scale_and_roll_without_a_lost_request(cluster: RunningCluster) -> None:
    ending, failures, results = threading.Event(), [], []

    def load() -> None:
        while not ending.wait(0.005):
            value = len(results) % 1000
            try:
                answer = cluster.ask(value)
            except Exception as error:
                failures.append(repr(error))
            else:
                results.append(answer == 2 * value)

    def settled(number: int) -> bool:
        pool = cluster.pool()
        return pool["state"] == "RUNNING" and pool["replica_states"] == {"RUNNING": number}

    before = cluster.replicas()
    thread = threading.Thread(target=load)
    thread.start()
    try:
        config = copy.deepcopy(cluster.config)
        config["applications"][0]["deployments"][0]["num_replicas"] = 3
        cluster.deploy(config)
        wait_until(lambda: settled(3) and len(cluster.replicas()) == 3, 60, what="a third replica")
        scaled = cluster.replicas()
        assert before < scaled  # the others were left alone
        config["applications"][0]["args"]["num_cpus"] = 0.5
        cluster.deploy(config)
        wait_until(lambda: not scaled & cluster.replicas() and settled(3), 120, what="other replicas")
    finally:
        ending.set()
        thread.join()
        cluster.deploy(cluster.config)
        wait_until(lambda: settled(2), 120, what="the first config")
    assert failures == []
    assert len(results) > 100 and all(results)


def test_a_missing_pool_is_named(cluster: RunningCluster) -> None:
    done = subprocess.run(
        [BIN / "pytriton", "ray", "status", "other", "--address", cluster.address],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pytriton: The cluster has no pool 'other'; it has 'double'.\n"
