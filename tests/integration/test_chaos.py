"""Mixed load while servers and processes are killed or stopped at random: all responses are correct."""

from __future__ import annotations

import contextlib
import random
import signal
import time

import psutil
import pytest
from mixed_load import Load, bind_all, double
from processes import process_of
from serving import HOST, bind_floats, free_config, is_running, server_of, servers, wait_until

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig
from pytriton.triton import RemoteTriton, Triton

# On a machine that runs other tests, too. A process that is killed again and again is started again after 10 s, which
# may happen twice to a request.
SLOWEST_S = 25.0


def kill_the_server(triton):
    before = server_of(triton)
    before.kill()
    wait_until(lambda: not is_running(before))


def stop_the_server_for_a_moment(triton):
    before = server_of(triton)
    with contextlib.suppress(psutil.NoSuchProcess):
        before.send_signal(signal.SIGSTOP)
        time.sleep(random.random() * 0.5)
        before.send_signal(signal.SIGCONT)


def kill_a_process_instance(triton):
    with contextlib.suppress(psutil.NoSuchProcess, ValueError):
        process_of("triple").kill()


def rebind_a_model(triton):
    bind_floats(triton, "another", double)


FAULTS = [kill_the_server, stop_the_server_for_a_moment, kill_a_process_instance, rebind_a_model]


@pytest.mark.parametrize("seconds", [10, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_every_response_is_correct_under_random_kills(seconds):
    process = psutil.Process()
    with Triton(config=free_config(restart_limit=10_000)) as triton:
        bind_all(triton)
        triton.run()
        url, token = f"http://{HOST}:{triton.config.http_port}", triton.get_access_token()
        with RemoteTriton(url, access_token=token) as remote:
            bind_floats(remote, "remote", batch(lambda x: [x * 5]), config=ModelConfig(max_batch_size=64))
            load = Load(triton, remote=5)
            end, kills, marks = time.monotonic() + seconds, 0, []
            while time.monotonic() < end:
                time.sleep(random.random() * 2)
                fault = random.choice(FAULTS)
                with contextlib.suppress(Exception):
                    fault(triton)
                kills += fault is kill_the_server
                marks.append((process.num_fds(), process.memory_info().rss >> 20))
            wait_until(triton.is_connected)
            load.end()
            ends = [*marks[:3], *marks[-3:]]
            summary = f"{load.responses} responses, {kills} kills, slowest {load.slowest_s:.2f} s, {ends}"
            print(summary)
            assert not load.faults, (load.faults[:5], summary)
            assert load.responses > 100 * seconds
            assert load.slowest_s < SLOWEST_S
    assert not servers()
    middle = marks[len(marks) // 2 :]
    assert max(fds for fds, _ in middle) < max(fds for fds, _ in marks[: len(marks) // 2]) + 100
    assert middle[-1][1] < middle[0][1] + 200, "memory grows"
