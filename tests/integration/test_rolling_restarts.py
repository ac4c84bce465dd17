"""Rolling restarts: no request fails of clients that check the readiness of servers."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import threading
import time

import pytest
from probes import get
from serving import HOST, Script, free_ports, json_floats, wait_until

REPLICA = """
import sys
import time
import numpy as np
from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, gateway_port = int(sys.argv[1]), int(sys.argv[2])
floats = lambda name: [Tensor(name=name, shape=(-1,), dtype=np.float32)]
config = TritonConfig(http_port=http_port, grpc_port=0, metrics_port=0, drain_secs=1)
with Triton(config=config) as triton:
    for model in ("plain", "other"):
        time.sleep(0.1)  # as for loading weights
        triton.bind(model, batch(lambda x: [x * 2]), floats("x"), floats("y"), config=ModelConfig(max_batch_size=8))
    triton.serve(gateway=GatewayConfig(port=gateway_port) if gateway_port else None)
"""


class Balancer:
    """Sends requests to servers that are ready, as a Service of Kubernetes does.

    Args:
        ports: The servers' ports.
    """

    def __init__(self, ports):
        self.sent = 0
        self.failures = []
        self._ready = dict.fromkeys(ports, False)
        self._turns = itertools.count()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = []

    def start(self, senders):
        self._run(self._probe)
        wait_until(lambda: all(self._ready.values()), timeout_s=30)
        for _ in range(senders):
            self._run(self._send)

    def is_ready(self, port):
        return self._ready[port]

    def stop(self):
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _run(self, target):
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _probe(self):
        while not self._done.wait(0.05):
            for port in self._ready:
                self._ready[port] = get(port, "/v2/health/ready", timeout_s=1) == 200

    def _send(self):
        connections = {}
        model = "plain"
        while not self._done.is_set():
            ready = [port for port, is_ready in self._ready.items() if is_ready]
            for port in connections.keys() - ready:
                connections.pop(port).close()
            if not ready:
                self.failures.append((time.monotonic(), None, "no server is ready"))
                time.sleep(0.01)
                continue
            port = ready[next(self._turns) % len(ready)]
            model = "other" if model == "plain" else "plain"
            failure = self._request(connections, port, model)
            with self._lock:
                self.sent += 1
            if failure is not None:
                self.failures.append((time.monotonic(), port, failure))
                connections.pop(port).close()

    @staticmethod
    def _request(connections, port, model):
        if port not in connections:
            connections[port] = http.client.HTTPConnection(HOST, port, timeout=20)
        try:
            body = json.dumps({"inputs": [json_floats([1])]})
            connections[port].request("POST", f"/v2/models/{model}/infer", body)
            response = connections[port].getresponse()
            reply = response.read()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        if response.status != 200 or json.loads(reply)["outputs"][0]["data"] != [2]:
            return f"{response.status} {reply[:200]!r}"
        return None


@pytest.mark.parametrize(
    ("rounds", "with_gateway"),
    [
        pytest.param(1, False, id="servers"),
        pytest.param(10, False, id="servers-long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(10, True, id="gateways-long", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_a_rolling_restart_fails_no_request_of_clients_that_check_readiness(rounds, with_gateway, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    arguments = []
    for folder in folders:
        folder.mkdir()
        http_port, gateway_port = free_ports(2)
        arguments.append((http_port, gateway_port if with_gateway else 0))
    ports = [gateway_port or http_port for http_port, gateway_port in arguments]
    replicas = [Script(folder, REPLICA, *each) for folder, each in zip(folders, arguments, strict=True)]
    balancer = Balancer(ports)
    restarts = 0
    try:
        balancer.start(senders=4)
        for _ in range(rounds):
            for number, port in enumerate(ports):
                replicas[number].signal(signal.SIGTERM)
                assert replicas[number].wait() == 0, replicas[number].stderr
                replicas[number].__exit__()
                replicas[number] = Script(folders[number], REPLICA, *arguments[number])
                wait_until(lambda: balancer.is_ready(port), timeout_s=30)  # noqa: B023
                restarts += 1
    finally:
        balancer.stop()
        for replica in replicas:
            replica.__exit__()
    print(f"{balancer.sent} requests over {restarts} restarts, {len(balancer.failures)} of which failed")
    assert balancer.failures == []
    assert balancer.sent > 100 * restarts
