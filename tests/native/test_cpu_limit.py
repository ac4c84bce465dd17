"""The CPU limit that C++ finds, against the one that Python finds."""

from __future__ import annotations

import ctypes
import pathlib
import tempfile

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from pytriton.proxy.transport.cpu_limit import cpu_limit

paths = st.lists(st.sampled_from(["a", "b"]), max_size=3).map("/".join)
controllers = st.sampled_from(["", "cpu", "cpu,cpuacct", "cpuacct,cpu", "cpuset", "name=systemd"])
mounts = st.sampled_from(["", "cpu/", "cpu,cpuacct/", "cpuacct,cpu/", "cpuset/"])
numbers = st.sampled_from(["max", "-1", "0", "", "50000", "100000", "250000", "1000000"])
groups = st.lists(st.tuples(controllers, paths), max_size=4)
limits = st.dictionaries(st.tuples(mounts, paths), st.tuples(st.booleans(), numbers, numbers), max_size=5)


@hypothesis.settings(deadline=None)
@given(groups, limits)
def test_cpp_finds_the_limit_that_python_finds(
    library: ctypes.CDLL, groups: list[tuple[str, str]], limits: dict[tuple[str, str], tuple[bool, str, str]]
) -> None:
    library.cpu_limit.restype = ctypes.c_double
    with tempfile.TemporaryDirectory() as root:
        own = pathlib.Path(root, "proc/self/cgroup")
        own.parent.mkdir(parents=True)
        own.write_text("".join(f"{number}:{names}:/{path}\n" for number, (names, path) in enumerate(groups)))
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
