"""The CPU limit that C++ finds, against the one that Python finds."""

from __future__ import annotations

import ctypes
import os
import pathlib
import tempfile

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.proxy.transport import adaptive_spin
from pytriton.proxy.transport.cpu_limit import cpu_limit

paths = st.lists(st.sampled_from(["a", "b", "..", "a b", "\udcff", ""]), max_size=3).map("/".join)
controllers = st.sampled_from(["", "cpu", "cpu,cpuacct", "cpuacct,cpu", "cpuset", "name=systemd"])
mounts = st.sampled_from(["", "cpu/", "cpu,cpuacct/", "cpuacct,cpu/", "cpuset/"])
numbers = st.sampled_from(["max", "-1", "0", "", "50000", "100000", "250000", "1000000"])
groups = st.lists(st.tuples(controllers, paths), max_size=4)
visible_paths = st.lists(st.sampled_from(["a", "b", "a b", "\udcff"]), max_size=3).map("/".join)
limits = st.dictionaries(st.tuples(mounts, visible_paths), st.tuples(st.booleans(), numbers, numbers), max_size=5)


@hypothesis.settings(deadline=None)
@given(groups, limits)
def test_cpp_finds_the_limit_that_python_finds(
    library: ctypes.CDLL, groups: list[tuple[str, str]], limits: dict[tuple[str, str], tuple[bool, str, str]]
) -> None:
    library.cpu_limit.restype = ctypes.c_double
    with tempfile.TemporaryDirectory() as root:
        own = pathlib.Path(root, "proc/self/cgroup")
        own.parent.mkdir(parents=True)
        lines = [f"{number}:{names}:/{path}\n" for number, (names, path) in enumerate(groups)]
        own.write_bytes(os.fsencode("".join(lines)))
        for (mount, path), (is_version_2, quota, period) in limits.items():
            group = pathlib.Path(root, "sys/fs/cgroup", mount + path)
            group.mkdir(parents=True, exist_ok=True)
            if is_version_2:
                (group / "cpu.max").write_text(f"{quota} {period}\n")
            else:
                (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
                (group / "cpu.cfs_period_us").write_text(f"{period}\n")

        found = library.cpu_limit(root.encode())
        assert (None if found < 0 else found) == cpu_limit(root)


@pytest.mark.parametrize("limit", [None, 0.5, 1, 2, 2.99, 3, 3.5, 4, 5, 6, 7.5, 8, 64])
@pytest.mark.parametrize("processors", [1, 2, 3, 8])
def test_under_a_limit_as_many_threads_may_spin_for_results_as_for_batches(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, processors: int, limit: float | None
) -> None:
    library.max_spinning.argtypes = [ctypes.c_int, ctypes.c_double]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    monkeypatch.setattr(adaptive_spin, "_cpu_limit", lambda: limit)
    monkeypatch.delenv("PYTRITON_SPIN", raising=False)

    found = library.max_spinning(processors, -1 if limit is None else limit)
    assert found == adaptive_spin._max_spinning(for_reply=False)
