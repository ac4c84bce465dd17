"""Limits of the system, as far as they explain failures."""

from __future__ import annotations

import errno
import os

from pytriton.utils.limits import limits_hint


def test_a_thread_that_could_not_be_started_hints_at_the_limit_on_processes():
    log = f"terminate called after throwing an instance of 'std::system_error'\n  what():  {os.strerror(errno.EAGAIN)}"
    assert "`ulimit -u`" in limits_hint(log)


def test_other_logs_hint_at_nothing():
    assert "`ulimit -u`" not in limits_hint("the model could not be loaded")
