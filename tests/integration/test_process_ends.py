"""Worker processes never outlive the process that they serve."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import cloudpickle
import psutil
import pytest
from processes import Multiply, bind_held, bind_pid, hold, process_of, processes_of
from serving import (
    Background,
    Script,
    bind_floats,
    is_ready,
    is_running,
    running_triton,
    send_floats,
    servers,
    shared_memory,
    wait_until,
)

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_unrecoverable_error_ends_serve(tmp_path):
    def make():
        def infer(requests):
            raise PyTritonUnrecoverableError("the device is lost")

        return infer

    triton = running_triton()
    bind_floats(triton, "lost", ProcessInstance(make))
    serving = Background(triton.serve)
    wait_until(lambda: is_ready(triton))
    response = wait_until(lambda: send_floats(triton, "lost", [1]))

    assert response == "model 'lost': PyTritonUnrecoverableError: the device is lost"
    serving.finish()
    assert isinstance(serving.error, PyTritonUnrecoverableError)
    assert str(serving.error) == "the device is lost"
    assert not processes_of("lost")
    assert not servers()


def test_a_hanging_callable_does_not_delay_the_stop(tmp_path):
    triton = running_triton(exit_timeout_secs=1)
    bind_held(triton, "held", tmp_path)
    triton.run()
    hold(triton, "held", tmp_path)
    process = process_of("held")

    start = time.monotonic()
    triton.stop()

    assert time.monotonic() - start < 5
    assert not is_running(process)


def test_requests_in_a_process_are_served_before_the_stop(tmp_path):
    triton = running_triton()
    bind_held(triton, "held", tmp_path)
    triton.run()
    request = hold(triton, "held", tmp_path)

    stopping = Background(triton.stop)
    assert is_running(process_of("held"))
    (tmp_path / "gate").touch()

    assert request.finish().result == [-2]
    stopping.finish()


def test_streams_in_a_process_end_with_the_server(tmp_path):
    def make():
        async def infer(requests):
            import asyncio

            (tmp_path / "entered").touch()
            await asyncio.sleep(60)

        return infer

    triton = running_triton(exit_timeout_secs=2)
    bind_floats(triton, "sleepy", ProcessInstance(make))
    triton.run()
    request = Background(lambda: send_floats(triton, "sleepy", [1]))
    wait_until((tmp_path / "entered").exists)

    triton.stop()

    assert "the model is being unloaded, or the process that serves it is exiting" in request.finish().result


@contextlib.contextmanager
def nothing_left():
    """Checks that the block leaves no process, file, thread or shared memory."""
    me = psutil.Process()
    before = (me.num_fds(), me.num_threads(), shared_memory())
    yield
    wait_until(lambda: not me.children(recursive=True))
    wait_until(lambda: me.num_fds() <= before[0] and me.num_threads() <= before[1])
    assert shared_memory() <= before[2]


@pytest.mark.slow
def test_twenty_runs_leave_nothing_behind(own_home):
    def run():
        bind_pid(triton, "model", [ProcessInstance(Multiply), Multiply()])
        triton.run()
        assert send_floats(triton, "model", [1]) == [2]
        triton.stop()

    triton = running_triton()
    run()
    with nothing_left():
        for _ in range(20):
            triton.run()
            assert send_floats(triton, "model", [1]) == [2]
            triton.stop()
    assert not list(own_home.iterdir())


FORKING = """
import os, signal, sys, threading, time
import numpy as np
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

triton = Triton()
tensor = Tensor((-1,), np.float32, "x")
triton.bind("M", [ProcessInstance(lambda: lambda requests: requests)] * 2, inputs=[tensor], outputs=[tensor])
triton.run()
print(triton.config.http_port, flush=True)
fork = os.fork()
if fork == 0:
    triton.stop()
    if sys.argv[1] == "forgetful":
        sys.exit()
    sys.stdin.readline()
    os._exit(0)
if sys.argv[1] == "forgetful":
    os.waitpid(fork, 0)

def report(before):
    while signal.getsignal(signal.SIGTERM) == before:
        time.sleep(0.01)
    print(fork, flush=True)

threading.Thread(target=report, args=[signal.getsignal(signal.SIGTERM)], daemon=True).start()
triton.serve()
print("after", flush=True)
"""


def descendants(script):
    return psutil.Process(script.pid).children(recursive=True)


def test_the_exit_of_a_fork_does_not_affect_the_processes(tmp_path):
    with Script(tmp_path, FORKING, "forgetful") as script:
        script.line(), script.line()
        processes = processes_of("M", script.pid)
        assert len(processes) == 2

        script.signal(signal.SIGTERM)
        assert script.line() == "after"
        assert script.wait() == 0
        assert not any(is_running(process) for process in processes.values())


def test_worker_processes_exit_with_a_killed_process_despite_its_forks(tmp_path):
    with Script(tmp_path, FORKING, "living") as script:
        script.line()
        fork = psutil.Process(int(script.line()))
        processes = processes_of("M", script.pid)
        assert len(processes) == 2

        script.signal(signal.SIGKILL)

        wait_until(lambda: not any(is_running(process) for process in processes.values()))
        fork.kill()


BUSY = """
import sys, time
import numpy as np
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

def make():
    import re
    def infer(requests):
        print("busy", flush=True)
        re.match("(a*)*b", "a" * 40)  # for hours, without letting another thread run
    return infer

triton = Triton()
tensor = Tensor((-1,), np.float32, "x")
triton.bind("M", ProcessInstance(make), inputs=[tensor], outputs=[tensor])
triton.run()
print(triton.config.http_port, flush=True)
triton.serve()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_busy_in_c_exits_too(tmp_path, number):
    with Script(
        tmp_path,
        BUSY.replace("Triton()", "Triton(config=TritonConfig(exit_timeout_secs=1))").replace(
            "import Triton", "import Triton, TritonConfig"
        ),
    ) as script:
        port = int(script.line())
        process = processes_of("M", script.pid)[0]

        def send_request():
            import urllib.request

            body = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'
            urllib.request.urlopen(f"http://localhost:{port}/v2/models/M/infer", body, timeout=30)

        Background(send_request)
        wait_until(lambda: "busy" in script.stderr)

        script.signal(number)

        script.wait()
        wait_until(lambda: not is_running(process))


def test_an_interrupt_from_the_terminal_reaches_this_process_alone(tmp_path):
    code = FORKING.replace("fork = os.fork()", "fork = 1").replace("Triton()", "Triton()\nos.setsid()", 1)
    # It may come before `serve` does.
    serving = "try:\n    print(fork, flush=True)\n    triton.serve()\nexcept KeyboardInterrupt:\n    triton.stop()\n"
    code = code.replace("print(fork, flush=True)\ntriton.serve()\n", serving)
    with Script(tmp_path, code, "living") as script:
        script.line(), script.line()
        processes = processes_of("M", script.pid)

        os.killpg(script.pid, signal.SIGINT)

        assert script.line() == "after"
        assert script.wait() == 0
        assert not any(is_running(process) for process in processes.values())
        assert "KeyboardInterrupt" not in script.stderr
        assert "restarting" not in script.stderr
