"""Instances in their own processes: factories, arguments, environment and output."""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from processes import (
    ONE_BY_ONE,
    Meet,
    Multiply,
    bind_pid,
    double,
    function,
    generator,
    is_ready,
    meet,
    pid_of_response,
    process_of,
    processes_of,
)
from serving import (
    FLOATS_IN,
    Background,
    Script,
    at_once,
    bind_floats,
    client_of,
    free_config,
    infer_json,
    is_running,
    json_floats,
    running_triton,
    send_floats,
    wait_until,
)
from streaming import bind_stream, row, streamed

from pytriton.decorators import batch, first_value, group_by_values, sample, triton_context
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton, Triton, TritonLifecyclePolicy

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# What an instance is given.


def test_each_instance_has_its_own_process(triton, name, tmp_path):
    bind_pid(triton, name, [ProcessInstance(Meet, args=[tmp_path]) for _ in range(2)], config=ONE_BY_ONE)

    processes = processes_of(name)
    assert sorted(processes) == [0, 1]
    with client_of(triton, "grpc") as client:
        pids = set(at_once(2, lambda _: pid_of_response(client, name)))
    assert pids == {process.pid for process in processes.values()}


def test_a_single_instance_needs_no_list(triton, name, client):
    bind_pid(triton, name, ProcessInstance(Multiply))

    assert pid_of_response(client, name) == process_of(name).pid


def test_an_instance_listed_twice_gets_two_processes(triton, name):
    bind_pid(triton, name, [ProcessInstance(Multiply)] * 2)

    assert len({process.pid for process in processes_of(name).values()}) == 2


def test_processes_and_callables_of_this_process_share_the_load(triton, name, tmp_path):
    bind_pid(triton, name, [Meet(tmp_path), ProcessInstance(Meet, args=[tmp_path])], config=ONE_BY_ONE)

    with client_of(triton, "grpc") as client:
        pids = set(at_once(2, lambda _: pid_of_response(client, name)))
    assert pids == {os.getpid(), process_of(name, 1).pid}


def test_the_factory_gets_its_arguments(triton, name):
    instances = [ProcessInstance(Multiply, args=(3,)), ProcessInstance(Multiply, kwargs={"factor": 3})]
    bind_pid(triton, name, instances, config=ModelConfig(max_batch_size=1))

    assert [send_floats(triton, name, [1]) for _ in range(4)] == [[3]] * 4


def test_each_process_has_the_environment_of_this_one_and_its_own(triton, name, tmp_path, monkeypatch):
    def make():
        seen = np.array([[f"{os.environ['COMMON']} {os.environ.get('OWN')}".encode()]], object)

        def serve(requests):
            meet(tmp_path)
            return [[seen] for _ in requests]

        return serve

    monkeypatch.setenv("COMMON", "here")
    triton.bind(
        name,
        [ProcessInstance(make, env={"OWN": "0"}), ProcessInstance(make, env={"OWN": "1", "COMMON": "there"})],
        inputs=FLOATS_IN,
        outputs=[Tensor((1,), bytes, "seen")],
        config=ModelConfig(max_batch_size=1),
    )

    def seen(_):
        return infer_json(triton, name, [json_floats([1])])[1]["outputs"][0]["data"][0]

    assert set(at_once(2, seen)) == {"here 0", "there 1"}
    assert "OWN" not in os.environ


def test_the_factory_runs_in_the_main_thread_of_its_process(triton, name):
    def make():
        is_main = float(threading.current_thread() is threading.main_thread())
        return lambda requests: [[np.full_like(request["x"], is_main)] for request in requests]

    bind_floats(triton, name, ProcessInstance(make))

    assert send_floats(triton, name, [0]) == [1]


def test_a_callable_knows_its_model(triton, name):
    def make():
        @batch
        @triton_context
        def infer(x, triton_context):
            return [x + triton_context.model_config.max_batch_size]

        return infer

    bind_floats(triton, name, ProcessInstance(make), config=ModelConfig(max_batch_size=7))

    assert send_floats(triton, name, [1]) == [8]


# What the factory may make, and be.


def coroutine():
    @batch
    async def infer(x):
        return [x * 2]

    return infer


def decorated_twice():
    @batch
    @group_by_values("x")
    @first_value("x")
    def infer(x):
        return [np.full((1, 1), x * 2)]

    return infer


def decorated_sample():
    return sample(lambda x: [x * 2])


@pytest.mark.parametrize("make", [function, coroutine, decorated_twice, decorated_sample])
def test_the_factory_may_return_callables_of_any_kind(triton, name, client, make):
    bind_floats(triton, name, ProcessInstance(make))

    assert client.infer(name, {"x": row(3)})["y"].tolist() == [[6]]


def async_generator():
    @batch
    async def steps(x):
        for number in range(3):
            yield [x + number]

    return steps


@pytest.mark.parametrize("make", [generator, async_generator])
def test_the_factory_may_return_generator_functions(triton, name, make):
    bind_stream(triton, name, ProcessInstance(make))

    values, _ = streamed(triton, name, 5)
    assert [value for value in values if value is not None] == [5, 6, 7]


def test_lambdas_closures_partials_and_decorated_functions_are_sent(triton, name):
    factor = 2.0

    def closure():
        return lambda requests: [[request["x"] * factor] for request in requests]

    factories = [lambda: double, closure, functools.partial(Multiply, factor=2)]
    for number, make in enumerate(factories):
        bind = bind_pid if number == 2 else bind_floats
        bind(triton, f"{name}_{number}", ProcessInstance(make))

        assert send_floats(triton, f"{name}_{number}", [3]) == [6]


SCRIPT = """
import os
import numpy as np
from beside import offset
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton
import tritonclient.http

print("imported", flush=True)
FACTOR = 2

@batch
def infer(x):
    return [x * FACTOR + offset(x)]

class Model:
    def __call__(self, requests):
        return infer(requests)

with Triton() as triton:
    tensor = Tensor((-1,), np.float32, "x")
    triton.bind("M", ProcessInstance(Model), inputs=[tensor], outputs=[tensor])
    triton.run()
    sent = tritonclient.http.InferInput("x", [1, 1], "FP32")
    sent.set_data_from_numpy(np.ones((1, 1), np.float32))
    with tritonclient.http.InferenceServerClient(f"localhost:{triton.config.http_port}") as client:
        print(client.infer("M", [sent]).as_numpy("x").item(), flush=True)
print("done", flush=True)
"""


def test_definitions_of_a_script_are_sent_and_the_script_runs_once(tmp_path):
    (tmp_path / "beside.py").write_text("def offset(x):\n    return 10\n")
    with Script(tmp_path, SCRIPT) as script:
        assert [script.line() for _ in range(3)] == ["imported", "12.0", "done"]
        assert script.wait() == 0


# Its output, and how it exits.


def test_its_output_and_logs_reach_the_stderr_of_this_process(triton, name, monkeypatch):
    stderr = io.StringIO()  # unlike what capfd reads, nothing is lost while another thread writes
    monkeypatch.setattr(sys, "stderr", stderr)

    def make():
        print("made", os.getpid())
        logging.getLogger("mine").warning("warned")
        os.write(1, b"raw \xff\n")

        def infer(requests):
            print("asked")
            return requests

        return infer

    bind_floats(triton, name, ProcessInstance(make))
    pid = process_of(name).pid
    send_floats(triton, name, [1])

    wait_until(lambda: "asked\n" in stderr.getvalue())
    for line in (f"made {pid}\n", "warned\n", "raw \\xff\n"):
        assert line in stderr.getvalue()


class Closing:
    def __init__(self, path):
        self.path = path

    def __call__(self, requests):
        return requests

    def close(self):
        self.path.write_text(str(os.getpid()))


def test_an_object_is_closed_with_the_server(name, tmp_path):
    with running_triton() as triton:
        bind_floats(triton, name, ProcessInstance(Closing, args=[tmp_path / "closed"]))
        triton.run()
        process = process_of(name)

    assert (tmp_path / "closed").read_text() == str(process.pid)
    assert not is_running(process)


def test_a_replaced_process_finishes_its_requests_closes_and_exits(triton, name, tmp_path):
    def make(path):
        class Held(Closing):
            def __call__(self, requests):
                (path / "entered").touch()
                wait_until((path / "gate").exists)
                return requests

        return Held(path / "closed")

    bind_floats(triton, name, ProcessInstance(make, args=(tmp_path,)))
    old = process_of(name)
    held = Background(lambda: send_floats(triton, name, [1]))
    wait_until((tmp_path / "entered").exists)

    bind_floats(triton, name, ProcessInstance(lambda: double))

    assert send_floats(triton, name, [1]) == [2]
    assert is_running(old)
    (tmp_path / "gate").touch()
    assert held.finish().result == [1]
    wait_until(lambda: not is_running(old))
    assert (tmp_path / "closed").read_text() == str(old.pid)
    assert send_floats(triton, name, [1]) == [2]


def test_processes_and_callables_may_replace_each_other(triton, name):
    for infer_func in (double, ProcessInstance(lambda: double), double):
        bind_floats(triton, name, infer_func)
        assert send_floats(triton, name, [1]) == [2]

    wait_until(lambda: not processes_of(name))


def test_versions_have_their_own_processes(triton, name):
    for version in (1, 2, 3, 4):  # the server reloads the earlier ones, and may keep their old instances
        bind_pid(triton, name, [ProcessInstance(Multiply, args=(version,))] * min(version, 2), model_version=version)
        for bound in range(1, version + 1):
            _, response = infer_json(triton, name, [json_floats([10])], version=bound)
            assert response["outputs"][0]["data"] == [10 * bound]


# Other ways to a server.


def test_a_remote_server_is_served_from_processes_too(triton, name):
    url = f"localhost:{triton.config.http_port}"
    with RemoteTriton(url=url, access_token=triton.get_access_token()) as remote:
        bind_pid(remote, name, [ProcessInstance(Multiply)] * 2)
        with client_of(triton) as client:
            assert pid_of_response(client, name) in {process.pid for process in processes_of(name).values()}

    assert not processes_of(name)
    assert not is_ready(triton, name)


@pytest.mark.parametrize("local_store", [True, False])
def test_a_server_that_starts_later_finds_them(name, local_store):
    policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=local_store)
    with Triton(config=free_config(), triton_lifecycle_policy=policy) as triton:
        bind_floats(triton, name, ProcessInstance(function))
        triton.run()
        assert send_floats(triton, name, [1]) == [2]


# Processes that a callable forks.


def forked(returns):
    """Responds with the exit status of a child process that does not end in the callable."""
    pid = os.fork()
    if pid == 0:
        return returns()
    return float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def fail():
    raise ValueError("from a child process")


def make_forking_function(returns):
    @batch
    def infer(x):
        return {"y": np.full_like(x, forked(returns))}

    return infer


def make_forking_coroutine(returns):
    @batch
    async def infer(x):
        return {"y": np.full_like(x, forked(returns))}

    return infer


@pytest.mark.parametrize("make", [make_forking_function, make_forking_coroutine])
@pytest.mark.parametrize("returns", [lambda: 7.0, fail], ids=["returns", "raises"])
def test_a_forked_process_that_leaves_the_callable_exits(triton, name, make, returns):
    bind_floats(triton, name, ProcessInstance(make, args=(returns,)))

    for _ in range(2):
        assert send_floats(triton, name, [7]) == [1]
