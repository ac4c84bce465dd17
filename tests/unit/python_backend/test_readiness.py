"""A model's own readiness check."""

from __future__ import annotations

import threading

import pytest

from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.readiness import ReadinessCheck


@pytest.mark.parametrize("ready", [True, False])
def test_the_result_is_that_of_the_model(ready):
    async def is_ready():
        return ready

    assert ReadinessCheck(lambda: ready, "m")() is ready
    assert ReadinessCheck(is_ready, "m")() is ready


@pytest.mark.parametrize("returned", [1, None, "yes"])
def test_a_result_other_than_a_boolean_is_refused(returned):
    with pytest.raises(TritonModelException, match=r"is_ready\(\) of model 'm' returned .*: return True or False"):
        ReadinessCheck(lambda: returned, "m")()


def test_exceptions_of_the_model_are_raised_each_time():
    calls = []

    def is_ready():
        calls.append(1)
        raise TimeoutError("the engine does not reply")

    check = ReadinessCheck(is_ready, "m")
    for number in (1, 2):
        with pytest.raises(TimeoutError, match="the engine does not reply"):
            check()
        assert len(calls) == number


def test_a_check_that_takes_too_long_fails_and_continues():
    gate, calls = threading.Event(), []

    def is_ready():
        calls.append(1)
        return gate.wait(60)

    check = ReadinessCheck(is_ready, "m", timeout_s=0.02)
    for _ in range(2):
        with pytest.raises(TritonModelException, match=r"has not returned for 0\.02 s"):
            check()
    gate.set()
    assert ReadinessCheck(is_ready, "m")()
    assert len(calls) == 2, "the second check waited for the first call"
