"""A rolling update of two pods under load, in the order in which Kubernetes does it, loses no request."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import subprocess
import threading
import time
from pathlib import Path

import pytest
from manifests import Pod, find
from read_only import RunningPod, running
from serving import HOST, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = 8
NEWS_S = 3.0  # how late clients hear that a pod is going: nodes change their tables one after the other


class Client(threading.Thread):
    """Sends requests one after the other to the pods that it knows of, in turn, by connections that it keeps."""

    def __init__(self, pods: list[RunningPod]) -> None:
        super().__init__(daemon=True)
        self.pods = pods
        self.served: dict[int, int] = {}
        self.failures: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        connections: dict[int, http.client.HTTPConnection] = {}
        for number in itertools.count():
            if self.done.is_set():
                return
            ports = [pod.gateway for pod in self.pods]
            for gone in connections.keys() - ports:
                connections.pop(gone).close()
            port = ports[number % len(ports)]
            connection = connections.setdefault(port, http.client.HTTPConnection(HOST, port, timeout=10))
            try:
                connection.request("POST", "/v1/models/Double", f'{{"x": [{number}]}}')
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{port}: {error!r}")
                connections.pop(port).close()
                continue
            if (response.status, body) == (200, b'{"y":[%d.0]}' % (2 * number)):
                self.served[port] = self.served.get(port, 0) + 1
            else:
                self.failures.append(f"{port}: {response.status} {body!r}")


def terminate(pod: RunningPod, described: Pod) -> float:
    """Stops a pod as the kubelet does, and returns the seconds that it took."""
    began = time.monotonic()
    subprocess.run(described.container["lifecycle"]["preStop"]["exec"]["command"], check=True)
    pod.process.terminate()
    assert pod.process.wait(described.spec["terminationGracePeriodSeconds"]) == 0
    return time.monotonic() - began


def test_rolling_update_loses_no_request(tmp_path_factory: pytest.TempPathFactory) -> None:
    described = Pod.of("base")
    probe = described.container["readinessProbe"]["httpGet"]["path"]
    replicas = find("base", "Deployment")["spec"]["replicas"]

    def volume() -> Path:
        return tmp_path_factory.mktemp("volume")

    with contextlib.ExitStack() as stack:
        pods = [stack.enter_context(running(described, volume())) for _ in range(replicas)]
        for pod in pods:
            pod.wait_until_ready(probe)
        endpoints = list(pods)
        clients = [Client(list(endpoints)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for old in pods:
            new = stack.enter_context(running(described, volume()))
            new.wait_until_ready(probe)
            endpoints = [pod for pod in endpoints if pod is not old] + [new]
            ending = threading.Timer(NEWS_S, lambda now: [setattr(each, "pods", now) for each in clients], [endpoints])
            ending.start()
            assert terminate(old, described) < described.spec["terminationGracePeriodSeconds"]
            ending.join()
        wait_until(lambda: all(len(client.served) == 2 * replicas for client in clients), what="requests to all pods")
        for client in clients:
            client.done.set()
        for client in clients:
            client.join(10)
        served = sum(sum(client.served.values()) for client in clients)
        print(f"{served} requests served")
        assert [failure for client in clients for failure in client.failures] == []
