"""Hours of mixed load: every response is correct, memory and descriptors do not grow.

By hand for an hour: ``SOAK_S=3600 pytest -m slow -s tests/integration/test_soak.py``.
"""

from __future__ import annotations

import os
import statistics
import time

import psutil
import pytest
from mixed_load import Load, bind_all
from serving import free_config, is_running, server_of, servers, wait_until
from worker_models import write_model

from pytriton.triton import Triton

DURATION_S = float(os.environ.get("SOAK_S", "600"))
LIFE_S = 60.0  # of a server, which is killed then
SAMPLE_S = 5.0
GROWTH_MIB = 30
GROWTH_FILES = 30


def sample(process):
    """Private memory in MiB, and open files."""
    return process.memory_full_info().uss >> 20, process.num_fds()


@pytest.mark.slow
@pytest.mark.timeout(DURATION_S + 300)
def test_memory_and_descriptors_do_not_grow_under_mixed_load(tmp_path):
    write_model(tmp_path, "repository")
    ours, theirs = psutil.Process(), []
    own = []
    with Triton(config=free_config(restart_limit=10_000, model_repository=tmp_path)) as triton:
        bind_all(triton)
        triton.run()
        load = Load(triton, repository=2)
        start, ended_by_itself = time.monotonic(), []
        try:
            while (passed := time.monotonic() - start) < DURATION_S:
                server, born = server_of(triton), time.monotonic()
                while time.monotonic() - born < LIFE_S and is_running(server):
                    time.sleep(SAMPLE_S)
                    own.append(sample(ours))
                if is_running(server):
                    theirs.append(sample(server))
                    server.kill()
                    wait_until(lambda server=server: not is_running(server))
                else:
                    ended_by_itself.append(passed)
                wait_until(triton.is_connected, 30)
                print(
                    f"{passed:.0f} s: {load.responses} responses, the slowest after {load.slowest_s:.1f} s; "
                    f"MiB and files: {own[-1]} here, {theirs[-1:]} of the server",
                    flush=True,
                )
        finally:
            load.end()
        assert not load.faults, load.faults[:5]
        assert not ended_by_itself
    assert not servers()
    for samples in (own, theirs):
        half = samples[len(samples) // 4 : len(samples) // 2], samples[-len(samples) // 4 :]
        for number, growth in enumerate((GROWTH_MIB, GROWTH_FILES)):
            before, after = (statistics.median(each[number] for each in part) for part in half)
            assert after < before + growth, samples
