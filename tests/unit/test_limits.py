"""Limits of the system, as far as they explain failures."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.utils.limits import check_address_space, limits_hint


def test_a_thread_that_could_not_be_started_hints_at_the_limit_on_processes():
    log = f"terminate called after throwing an instance of 'std::system_error'\n  what():  {os.strerror(errno.EAGAIN)}"
    assert "`ulimit -u`" in limits_hint(log)


@pytest.mark.parametrize("limit_mib", [resource.RLIM_INFINITY, 1 << 30, 100])
def test_shared_memory_must_fit_in_the_address_space(monkeypatch, limit_mib):
    limit = limit_mib if limit_mib == resource.RLIM_INFINITY else limit_mib << 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    if limit_mib != 100:
        check_address_space(8 << 30, 1 << 30)
        return
    with pytest.raises(PyTritonRuntimeError, match=r"limited to 100 MiB \(RLIMIT_AS.* it needs \d+ MiB"):
        check_address_space(8 << 30, 1 << 30)


def test_other_logs_hint_at_nothing():
    assert "`ulimit -u`" not in limits_hint("the model could not be loaded")
