"""Descriptions of exit statuses."""

import os
import signal
import subprocess
import sys

import pytest

from pytriton.utils.exit_status import describe_exit


@pytest.mark.parametrize(("returncode", "words"), [(0, "exited with status 0"), (3, "exited with status 3")])
def test_an_exited_process_is_described_with_its_status(returncode, words):
    assert describe_exit(returncode) == words


def killed_by(number):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        os.kill(process.pid, number)
        return process.wait()


def test_a_killed_process_is_described_with_the_signals_name():
    assert describe_exit(killed_by(signal.SIGKILL)) == "was killed by SIGKILL"


def test_an_unnamed_signal_is_described_by_its_number():
    number = signal.SIGRTMIN + 3
    assert describe_exit(killed_by(number)) == f"was killed by signal {int(number)}"
