"""Descriptions of exit statuses."""

import os
import signal
import subprocess
import sys

import pytest

from pytriton.utils.exit_status import describe_exit, has_exited, wait_for_returncode


@pytest.mark.parametrize(("returncode", "words"), [(0, "exited with status 0"), (3, "exited with status 3")])
def test_an_exited_process_is_described_with_its_status(returncode, words):
    assert describe_exit(returncode) == words


def waiting():
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def killed_by(number):
    with waiting() as process:
        os.kill(process.pid, number)
        return wait_for_returncode(process)


def test_a_status_is_read_once_the_process_has_exited():
    with subprocess.Popen([sys.executable, "-c", "input(); exit(3)"], stdin=subprocess.PIPE) as process:
        assert not has_exited(process)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert wait_for_returncode(process) == 3


def test_an_exited_process_keeps_its_status_until_it_is_read():
    with waiting() as process:
        process.kill()
        while not has_exited(process):
            pass
        assert has_exited(process)
        assert wait_for_returncode(process) == -signal.SIGKILL


def test_a_status_that_something_else_has_read_is_unknown():
    with waiting() as process:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert has_exited(process)
        returncode = wait_for_returncode(process)
    assert describe_exit(returncode).startswith("ended with a status that is unknown: the program may ignore SIGCHLD")


def test_a_status_is_unknown_while_sigchld_is_ignored():
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert killed_by(signal.SIGKILL) is None
    finally:
        signal.signal(signal.SIGCHLD, previous)


def test_a_killed_process_is_described_with_the_signals_name():
    assert describe_exit(killed_by(signal.SIGKILL)) == "was killed by SIGKILL"


def test_an_unnamed_signal_is_described_by_its_number():
    number = signal.SIGRTMIN + 3
    assert describe_exit(killed_by(number)) == f"was killed by signal {int(number)}"
