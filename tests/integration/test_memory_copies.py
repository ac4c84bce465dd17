"""How the server's C library copies memory."""

from __future__ import annotations

import pathlib
import re

import pytest
from serving import running_triton, server_of

THRESHOLD = "glibc.cpu.x86_rep_movsb_threshold"


def is_recent_amd():
    """Whether the processor is AMD's Zen 3 or later."""
    about = pathlib.Path("/proc/cpuinfo").read_text()
    family = re.search(r"^cpu family\s*: (\d+)$", about, re.MULTILINE)
    return "AuthenticAMD" in about and family is not None and int(family[1]) >= 0x19


def environment_of_server():
    """The environment of a server that is started for this, where glibc has put zeros between the tunables."""
    with running_triton() as triton:
        triton.run()
        return pathlib.Path(f"/proc/{server_of(triton).pid}/environ").read_text()


@pytest.mark.parametrize("usual", [None, "glibc.malloc.check=0"], ids=["no tunables", "others"])
def test_rep_movsb_is_not_used_where_it_is_slow(monkeypatch, usual):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if usual is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", usual)

    environment = environment_of_server()

    assert usual is None or usual in environment
    assert (THRESHOLD in environment) == is_recent_amd()


def test_a_threshold_of_the_environment_is_kept(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", f"{THRESHOLD}=4096")

    environment = environment_of_server()

    assert environment.count(THRESHOLD) == 1
    assert f"{THRESHOLD}=4096" in environment
