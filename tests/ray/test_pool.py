"""Pools: replicas on several nodes, and the clients that follow them."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
import urllib.request

import cloudpickle
import numpy as np
import pytest
from serving import Background, wait_until

from pytriton.client import FuturesModelClient, ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer
from pytriton.model_config import ModelConfig, Tensor
from pytriton.ray import Autoscale, application, connect, deploy, pools

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(180)]

X = np.float32([1, 2])


def building(factor=2):
    def build(triton):
        @batch
        def multiply(x):
            return {"y": x * factor, "pid": np.full((len(x), 1), os.getpid())}

        outputs = [Tensor((-1,), np.float32, "y"), Tensor((1,), np.int64, "pid")]
        triton.bind(
            "Multiply", multiply, [Tensor((-1,), np.float32, "x")], outputs, config=ModelConfig(max_batch_size=8)
        )

    return build


def refusing(triton):
    raise LookupError("there are no weights in /weights")


def deployed(name="numbers", build=None, replicas=2, **settings):
    """Deploys a pool whose replicas hold no CPU, so that all of them fit."""
    return deploy(build or building(), name=name, replicas=replicas, num_cpus=0, **settings)


@pytest.fixture(scope="module")
def pool(cluster):
    """A pool of two replicas."""
    pool = deployed()
    yield pool
    pool.shutdown()


def ready(pool):
    return [replica for replica in pool.replicas() if replica.is_ready]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_uses_all_replicas(pool, protocol):
    with pool.client("Multiply", protocol=protocol) as client:
        results = [client.infer_sample(X) for _ in range(4)]
    assert all(result["y"].tolist() == [2, 4] for result in results)
    assert {result["pid"].item() for result in results} == {replica.pid for replica in pool.replicas()}


def test_clients_of_all_kinds_accept_the_pools_urls(pool):
    async def sent():
        async with pool.aclient("Multiply") as client:
            return await asyncio.gather(*(client.infer_sample(X) for _ in range(4)))

    assert all(result["y"].tolist() == [2, 4] for result in asyncio.run(sent()))
    with FuturesModelClient(pool.urls(), "Multiply") as client:
        assert client.infer_sample(X).result()["y"].tolist() == [2, 4]


@pytest.mark.slow
def test_a_pool_is_found_by_its_name_and_can_be_pickled(pool, cluster):
    import ray

    @ray.remote(num_cpus=0)
    def send(pool):
        with pool.client("Multiply") as client:
            return client.infer_sample(X)["y"].tolist()

    assert ray.get(send.remote(pool)) == [2, 4]
    assert pickle.loads(pickle.dumps(connect("numbers"))).replicas() == pool.replicas() or pool.replicas()
    assert "numbers" in pools()
    with pytest.raises(PyTritonBadParameterError, match="no pool 'letters'; it has 'numbers'"):
        connect("letters")


def test_the_status_shows_replicas_nodes_models_and_load(pool, cluster):
    # Ray publishes what it knows of the replicas a moment after they are ready.
    status = wait_until(lambda: (found := pool.status()).replica_states == {"RUNNING": 2} and found, 30.0)
    assert status.state == "RUNNING"
    assert {replica.node for replica in status.replicas} <= {node.node_id for node in cluster.list_all_nodes()}
    assert all(replica.models == ("Multiply",) and replica.load["pending"] == 0 for replica in status.replicas)
    assert all(replica.http in str(status) for replica in status.replicas)


def test_prometheus_gets_the_metrics_of_all_replicas(pool):
    targets = pool.targets()
    assert [each["labels"]["pool"] for each in targets] == ["numbers"] * 2
    for [target] in [each["targets"] for each in targets]:
        with urllib.request.urlopen(f"http://{target}/metrics") as response:
            assert b'nv_inference_request_success{model="Multiply"' in response.read()


def test_a_gateway_follows_the_replicas(pool):
    config = GatewayConfig(port=0)
    server = GatewayServer(Gateway(pool.urls("grpc"), config, access_token=pool.access_token), config)
    server.start()
    try:
        request = urllib.request.Request(
            f"{server.url}/v1/models/Multiply", b'{"x": [1, 2]}', {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["y"] == [2, 4]
    finally:
        server.stop(5.0)


@pytest.mark.slow
def test_clients_find_a_restarted_replica_at_its_new_address(pool):
    with pool.client("Multiply") as client:
        client.infer_sample(X)
        victim = pool.replicas()[0]
        os.kill(victim.pid, signal.SIGKILL)
        for _ in range(50):
            assert client.infer_sample(X)["y"].tolist() == [2, 4]
        wait_until(lambda: len(ready(pool)) == 2 and victim.id not in {each.id for each in pool.replicas()}, 30.0)
        pids = {replica.pid for replica in pool.replicas()}
        wait_until(lambda: client.infer_sample(X)["pid"].item() in pids - {victim.pid})


@pytest.mark.slow
def test_updates_lose_no_request(cluster):
    pool = deployed("updated", building(2), replicas=1)
    factors, over = set(), []

    def send():
        with pool.client("Multiply") as client:
            while not over:
                factors.add(client.infer_sample(X)["y"][0].item())

    background = Background(send)
    wait_until(lambda: factors == {2})
    first = ready(pool)[0].id
    deployed("updated", building(2), replicas=2)
    assert first in {replica.id for replica in ready(pool)}  # another number leaves the others alone
    deployed("updated", building(3), replicas=1)
    factors.clear()
    wait_until(lambda: factors == {3})
    over.append(True)
    assert background.finish().error is None
    pool.shutdown()
    assert pool.status().state == "NOT_STARTED"


@pytest.mark.slow
def test_a_failed_build_gives_the_reason_and_leaves_nothing(cluster):
    with pytest.raises(PyTritonRuntimeError) as caught:
        deployed("refused", refusing, replicas=1)
    text = str(caught.value)
    assert text.startswith("Pool 'refused' cannot be deployed. A replica could not be started: on node ")
    assert "LookupError: there are no weights in /weights\nTraceback" in text
    assert ", in refusing" in text
    wait_until(lambda: connect_state("refused") == "NOT_STARTED")


def connect_state(name):
    from ray import serve

    return "NOT_STARTED" if name not in serve.status().applications else "there"


@pytest.mark.slow
def test_a_failed_update_leaves_the_old_replicas(pool):
    with pytest.raises(PyTritonRuntimeError, match="LookupError: there are no weights") as caught:
        deployed(build=refusing)
    assert str(caught.value).endswith("The earlier replicas still serve.")
    assert pool.status().failures[-1].error == "LookupError: there are no weights in /weights"
    with pool.client("Multiply") as client:
        assert client.infer_sample(X)["y"].tolist() == [2, 4]
    deployed()
    assert pool.status().state == "RUNNING"


def test_a_full_cluster_is_reported_with_its_resources(cluster):
    with pytest.raises(
        PyTritonRuntimeError, match=r"not deployed within 2 s\. .*requires 64 CPU \(free in the cluster: "
    ):
        deploy(building(), name="large", num_cpus=64, timeout_s=2.0)
    with pytest.raises(PyTritonRuntimeError, match="requires 1 GPU"):
        deploy(building(), name="large", num_cpus=0, num_gpus=1, timeout_s=2.0)


HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "pytriton":
            raise ModuleNotFoundError("No module named 'pytriton'", name=name)

sys.meta_path.insert(0, Hiding())
"""


@pytest.mark.slow
def test_a_node_without_the_package_is_reported(cluster, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    options = {"runtime_env": {"env_vars": {"PYTHONPATH": str(tmp_path)}}}
    with pytest.raises(PyTritonRuntimeError, match="No module named 'pytriton'"):
        deployed("bare", replicas=1, actor_options=options)


def test_a_client_that_cannot_reach_the_replicas_names_their_addresses():
    urls = ["http://192.0.2.77:8000", "http://192.0.2.78:8000"]
    client = ModelClient(lambda: urls, "Multiply", init_timeout_s=1.0)
    with client, pytest.raises(Exception, match=r"192\.0\.2\.7[78]"):
        client.infer_sample(X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"build": 3}, "build is 3; pass a function"),
        ({"name": ""}, "name is ''"),
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": True}, "replicas is True"),
        ({"num_cpus": -1}, "num_cpus is -1"),
        ({"num_gpus": "1"}, "num_gpus is '1'"),
        ({"autoscale": 3}, "autoscale is 3"),
        ({"replicas": 5, "autoscale": Autoscale(1, 3)}, "replicas is 5, and autoscale allows 1 to 3"),
        ({"max_surge_percent": 101}, "max_surge_percent is 101"),
        ({"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(PyTritonBadParameterError, match=message.replace("(", r"\(")):
        deploy(**{"build": building(), "name": "refused", **arguments})


def test_a_function_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()
    with pytest.raises(PyTritonBadParameterError, match="build cannot be sent to other nodes: TypeError"):
        application(lambda triton: lock)
