from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import uuid

import pytest

import pytriton.proxy.transport.cpu_limit as module
from pytriton.proxy.transport.cpu_limit import cpu_count, cpu_limit

OWN_LIMIT = "from pytriton.proxy.transport.cpu_limit import cpu_limit; print(cpu_limit())"
GROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture
def machine(tmp_path):
    """Writes files of a machine: the process's groups, and what each group says."""

    def make(groups, **files):
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.fsencode(text + "\n"))
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b", {"cpu.max": "100000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/invisible/group", {"cpu.max": "200000 50000"}, 4),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu:/invisible", {"cpu/cpu.cfs_quota_us": "75000", "cpu/cpu.cfs_period_us": "50000"}, 1.5),
        ("3:cpuset:/\n2:cpuacct:/", {"cpuset/cpu.cfs_quota_us": "1", "cpuset/cpu.cfs_period_us": "1"}, None),
        ("2:cpu:/\n0::/", {"cpu.max": "300000 100000"}, 3),
        ("0::/../../b", {"cpu.max": "200000 100000", "../../b/cpu.max": "100000 100000"}, 2),
        ("0::/a b\udcff\x0c/\u2028", {"a b\udcff\x0c/\u2028/cpu.max": "200000 100000"}, 2),
        ("\nno colon\n1:one\n0::/a:b", {"a:b/cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": ""}, None),
        ("0::/", {"cpu.max": "100000"}, None),
        ("0::/", {"cpu.max": f"1{400 * '0'} 1"}, None),
    ],
    ids=[
        "no control group has one",
        "an unlimited group",
        "version 2",
        "a group in a group",
        "the lowest of all groups that the process is in",
        "a container that sees its group only as the root",
        "an unlimited group of version 1",
        "version 1",
        "a container of version 1",
        "controllers of something else",
        "both versions mounted",
        "a group outside of the container's namespace",
        "a group with an unusual name",
        "lines of another form",
        "an empty file",
        "half a line",
        "a number that is too large",
    ],
)
def test_it_finds_the_limit_of_the_control_group(machine, groups, files, limit):
    root = machine(groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()})

    assert cpu_limit(root) == limit


def test_a_machine_without_control_groups_has_no_limit(tmp_path):
    assert cpu_limit(str(tmp_path)) is None


@pytest.mark.parametrize(("limit", "count"), [(None, 4), (8, 4), (4, 4), (2.9, 2), (1, 1), (0.25, 1)])
def test_a_limit_leaves_as_many_processors_as_it_can_keep_busy(monkeypatch, limit, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(module, "cpu_limit", lambda: limit)

    assert cpu_count() == count


@pytest.fixture
def limited_group():
    """A real control group with a limit of three quarters of a processor; where none can be created, the test is
    skipped."""
    mount, limits = (
        (GROUPS / "cpu", {"cpu.cfs_period_us": "40000", "cpu.cfs_quota_us": "30000"})
        if (GROUPS / "cpu").is_dir()
        else (GROUPS, {"cpu.max": "30000 40000"})
    )
    group = mount / f"pytriton-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        for name, text in limits.items():
            (group / name).write_text(text)
        (group / "cgroup.procs").open("a").close()
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be created here: {error}")
    yield group
    group.rmdir()


def test_it_finds_the_limit_of_a_real_control_group(limited_group):
    enter = f"open({str(limited_group / 'cgroup.procs')!r}, 'w').write('0')"
    found = subprocess.run([sys.executable, "-c", f"{enter}; {OWN_LIMIT}"], capture_output=True, text=True, check=True)

    assert float(found.stdout) == pytest.approx(min(0.75, cpu_limit() or 0.75))
