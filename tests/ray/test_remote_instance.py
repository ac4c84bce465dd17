"""Instances of a model in Ray actors: what they serve, and what happens when they die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest
from actors import ONE_BY_ONE, Double, bind_pid, entered, has_ended, instances, served_by, wait_for
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    Background,
    Script,
    at_once,
    bind_floats,
    is_ready,
    metrics_of,
    request_json,
    send_floats,
    wait_until,
)
from streaming import STREAMING, stream_to, streamed

from pytriton.decorators import batch, sample, triton_context
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonInvalidRequestError,
)
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.proxy.types import Response
from pytriton.ray import RemoteInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.xdist_group("ray")


def remote(factory, *args, **settings):
    return RemoteInstance(factory, args=args, num_cpus=0, **settings)


def test_instances_on_several_nodes_in_processes_and_in_threads_share_the_load(triton, name, client):
    where = [{"resources": {node: 1}} for node in ("a", "b")]
    sources = [remote(Double, ray_actor_options=options) for options in where]
    bind_pid(triton, name, [*sources, ProcessInstance(Double), Double()])

    def pids():
        return set(at_once(8, lambda _: served_by(client, name)))

    seen = set()
    wait_until(lambda: len(seen.update(pids()) or seen) == 4)
    assert os.getpid() in seen


def test_requests_and_responses_are_those_of_other_instances(triton, name, client):
    def make():
        def infer(requests):
            responses = []
            for request in requests:
                request["x"][:] += 1  # inputs may be changed
                texts = [text + b"!" for text in request["text"].ravel()]
                metadata = f"{request.request_id} {request.parameters['n']} {request.requested_output_names}"
                outputs = {
                    "y": request["x"],
                    "text": np.array(texts, object).reshape(-1, 1),
                    "metadata": np.array([[metadata]]),
                }
                responses.append(Response(outputs, parameters={"seen": True}))
            return responses

        return infer

    text = Tensor(name="text", shape=(1,), dtype=bytes)
    metadata = Tensor(name="metadata", shape=(1,), dtype=bytes)
    triton.bind(name, remote(make), [*FLOATS_IN, text], [*FLOATS_OUT, text, metadata])

    x = np.arange(1 << 18, dtype=np.float32).reshape(1, -1)  # a megabyte, which Ray keeps in its object store
    inputs = {"x": x, "text": np.array([[b"\x00\xff"]], object)}
    result = client.result(name, inputs, request_id="id", parameters={"n": 7})

    assert np.array_equal(result.as_numpy("y"), x + 1)
    assert result.as_numpy("text").tolist() == [[b"\x00\xff!"]]
    assert result.as_numpy("metadata").tolist() == [[b"id 7 ['y', 'text', 'metadata']"]]
    assert result.get_response().parameters["seen"].bool_param


def test_an_error_reaches_the_client_in_brief_and_the_log_with_its_traceback(triton, name, caplog):
    def make():
        @sample
        def infer(x):
            if x[0] < 0:
                raise PyTritonInvalidRequestError("no negative numbers")
            raise ZeroDivisionError("so it is")

        return infer

    bind_floats(triton, name, remote(make))

    assert send_floats(triton, name, [1]) == f"model '{name}': ZeroDivisionError: so it is"
    wait_until(lambda: 'raise ZeroDivisionError("so it is")' in caplog.text)
    assert send_floats(triton, name, [-1]) == "invalid argument: no negative numbers"


def test_a_coroutine_serves_many_batches_at_a_time(triton, name):
    def make():
        inside = 0

        async def infer(requests):
            nonlocal inside
            inside += 1
            while inside < 8:
                await asyncio.sleep(0.01)
            return requests

        return infer

    bind_floats(triton, name, remote(make), config=ONE_BY_ONE)

    assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[number] for number in range(8)]


def count():
    """Yields the numbers below that of the request; forever for a negative one, until it is closed."""

    def infer(requests):
        number = int(requests[0]["x"].flat[0])
        steps = iter(range(number)) if number >= 0 else iter(lambda: time.sleep(0.01) or number, None)
        try:
            for step in steps:
                yield [{"y": np.full_like(request["x"], step)} for request in requests]
        finally:
            if number < 0:
                os.kill(-number, signal.SIGUSR1)

    return infer


def count_async():
    async def infer(requests):
        number = int(requests[0]["x"].flat[0])
        step = 0
        try:
            while step != number:
                yield [{"y": np.full_like(request["x"], step)} for request in requests]
                step += 1
                await asyncio.sleep(0.01)
        finally:
            if number < 0:
                os.kill(-number, signal.SIGUSR1)

    return infer


def return_one():
    def infer(requests):
        return [{"y": request["x"]} for request in requests]

    return infer


@pytest.mark.parametrize("factory", [count, count_async])
def test_a_generator_streams_and_is_closed_when_its_client_disconnects(triton, name, factory):
    triton.bind(name, remote(factory), FLOATS_IN, FLOATS_OUT, config=STREAMING)

    ys, finals = streamed(triton, name, 3)
    assert ys[:3] == [0, 1, 2]
    assert finals[-1]

    ended = []
    before = signal.signal(signal.SIGUSR1, lambda *_: ended.append(True))
    try:
        with stream_to(triton) as stream:
            stream.send(name, -os.getpid())
            assert stream.reply().error is None
            stream.cancel()
            wait_until(lambda: ended)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_function_of_a_decoupled_model_may_return(triton, name):
    triton.bind(name, remote(return_one), FLOATS_IN, FLOATS_OUT, config=STREAMING)

    assert streamed(triton, name, 3) == ([3], [True])


def test_an_actor_exits_with_its_model_after_closing_it(triton, name, client, tmp_path):
    bind_pid(triton, name, instances(1, tmp_path))
    pid = served_by(client, name)

    triton.unbind(name)

    wait_until(lambda: has_ended(pid))
    assert (tmp_path / f"closed-{pid}").exists()


def test_batches_of_a_dead_actor_go_to_another_one(triton, name, client, tmp_path, caplog):
    bind_pid(triton, name, instances(2, tmp_path))
    held = Background(lambda: served_by(client, name, -1))
    killed = entered(tmp_path)

    os.kill(killed, signal.SIGKILL)
    other = entered(tmp_path, but=[killed])
    (tmp_path / "gate").touch()

    assert held.finish().result == other
    wait_until(lambda: triton.report.instances(name) == (2, 1))
    wait_until(lambda: metrics_of(triton, name)["remote_instance_restarts_total"] == 1)
    assert f"actor of model '{name}'" in caplog.text
    seen = set()
    wait_until(lambda: len(seen.update(at_once(4, lambda _: served_by(client, name))) or seen) == 2, 30)
    assert killed not in seen


def test_a_batch_of_the_only_actor_waits_for_its_replacement(triton, name, client, tmp_path):
    bind_pid(triton, name, instances(1, tmp_path))
    killed = served_by(client, name)

    os.kill(killed, signal.SIGKILL)

    assert served_by(client, name) != killed


@pytest.mark.slow
def test_a_model_is_not_ready_while_none_of_its_actors_can_be_restarted(triton, name, client, tmp_path):
    broken = tmp_path / "broken"

    def make():
        if broken.exists():
            raise RuntimeError("the weights are gone")
        return Double()

    bind_pid(triton, name, remote(make))
    broken.touch()
    os.kill(served_by(client, name), signal.SIGKILL)
    wait_until(lambda: not is_ready(triton), 30)
    assert request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 400

    broken.unlink()
    wait_until(lambda: is_ready(triton), 30)
    assert request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


def test_a_batch_that_kills_actors_fails_before_it_kills_them_all(triton, name, client, tmp_path):
    bind_pid(triton, name, instances(3, tmp_path))
    before = set()
    wait_until(lambda: len(before.update(at_once(6, lambda _: served_by(client, name))) or before) == 3)

    error = send_floats(triton, name, [-2])

    assert error.startswith(f"model '{name}': the worker has gone: its actor on node ")
    assert error.endswith(" died: its worker process has died")
    wait_until(lambda: triton.report.instances(name) == (3, 2))
    assert len([pid for pid in before if not has_ended(pid)]) == 1
    assert served_by(client, name) > 0


@pytest.mark.slow
def test_a_stream_whose_actor_dies_ends_with_an_error(triton, name, tmp_path):
    gate = tmp_path / "gate"

    def make():
        def infer(requests):
            yield [{"y": request["x"]} for request in requests]
            wait_for(gate)
            os._exit(1)

        return infer

    triton.bind(name, [remote(make), remote(make)], FLOATS_IN, FLOATS_OUT, config=STREAMING)

    with stream_to(triton) as stream:
        stream.send(name, 3)
        assert stream.reply().y == 3
        gate.touch()
        assert "the worker has gone" in stream.reply().error


@pytest.mark.slow
def test_a_batch_is_not_sent_again_without_retries(triton, name, client):
    bind_pid(triton, name, instances(2, retries=0))

    assert "the worker has gone" in send_floats(triton, name, [-2])
    wait_until(lambda: triton.report.instances(name) == (2, 1))


def test_bind_raises_the_error_of_a_factory(triton, name):
    def make():
        raise ValueError("no weights")

    with pytest.raises(PyTritonInvalidOperationError) as caught:
        bind_floats(triton, name, [return_one(), remote(make)])

    assert str(caught.value) == (
        f"The actor of model '{name}' (instance 1) cannot create its inference callable: ValueError: no weights"
    )


def test_the_result_of_the_factory_is_checked(triton, name):
    with pytest.raises(PyTritonInvalidOperationError, match=r"decoupled=True"):
        bind_floats(triton, name, remote(count))


def test_bind_reports_a_full_cluster_with_its_resources(triton, name):
    instance = RemoteInstance(return_one, num_cpus=64, num_gpus=1, placement_timeout_s=0.5)

    with pytest.raises(PyTritonInvalidOperationError) as caught:
        bind_floats(triton, name, instance)

    assert "has not started in the Ray cluster within 0.5 s: it needs num_cpus=64, num_gpus=1" in str(caught.value)
    assert "CPU 1, a 100" in str(caught.value)


def test_the_server_cannot_be_called_from_an_actor(triton, name):
    def make():
        @batch
        @triton_context
        def infer(x, triton_context):
            assert triton_context.model_config.name.startswith("test_")
            return triton_context.infer("Other", {"x": x})

        return infer

    bind_floats(triton, name, remote(make))

    assert "an actor has no connection to the server" in send_floats(triton, name, [1])


def test_bind_names_arguments_that_cannot_be_pickled(triton, name):
    lock = __import__("threading").Lock()

    with pytest.raises(PyTritonBadParameterError, match="instance 0 cannot be sent to its actor: TypeError"):
        bind_floats(triton, name, remote(lambda: lock))


def test_an_actor_takes_no_tensors_of_gpus(triton, name):
    with pytest.raises(PyTritonBadParameterError, match="gpu_tensors=True and a RemoteInstance"):
        bind_floats(triton, name, remote(lambda: return_one), config=ModelConfig(gpu_tensors=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_cpus": -1}, "num_cpus is -1"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"placement_timeout_s": None}, "placement_timeout_s is None"),
        ({"ray_actor_options": []}, "use a dictionary"),
        ({"ray_actor_options": {"lifetime": "detached"}}, "'lifetime', which is reserved"),
        ({"ray_actor_options": {"color": "red"}}, "Ray does not accept the actor options"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(PyTritonBadParameterError, match=words):
        RemoteInstance(return_one, **settings)


SCRIPT = """
import os
import numpy as np
import ray
from pytriton.model_config import Tensor
from pytriton.ray import RemoteInstance
from pytriton.triton import Triton

ray.init(address="{address}", log_to_driver=False)

def make(path):
    open(path, "w").write(str(os.getpid()))
    return lambda requests: requests

x = Tensor(name="x", shape=(1,), dtype=np.float32)
triton = Triton()
triton.bind("M", RemoteInstance(make, args=[{path!r}], num_cpus=0), [x], [x])
triton.run()
print("runs")
input()
"""


@pytest.mark.slow
def test_actors_exit_with_the_serving_process(cluster, tmp_path):
    path = tmp_path / "pid"
    with Script(tmp_path, SCRIPT.format(address=cluster.address, path=str(path))) as script:
        while script.line() != "runs":
            pass
        pid = int(path.read_text())
        assert not has_ended(pid)

        script.signal(signal.SIGKILL)

        wait_until(lambda: has_ended(pid), 20)


def test_the_package_does_not_import_ray_and_says_how_to_install_it():
    code = """
import sys
import pytriton, pytriton.triton
assert "ray" not in sys.modules
sys.modules["ray"] = None
try:
    import pytriton.ray
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pytriton[ray]'" in done.stdout
