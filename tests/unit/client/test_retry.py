from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client.core.failures import server_error
from pytriton.client.exceptions import Failure, PyTritonClientValueError
from pytriton.client.retry import RetryPolicy


def test_pauses_grow_up_to_the_longest():
    policy = RetryPolicy(pause_s=0.5, factor=3, max_pause_s=4, jitter=0)

    assert [policy.pause_before(attempt) for attempt in range(2, 6)] == [0.5, 1.5, 4, 4]


@given(st.integers(2, 100_000), st.floats(0, 1))
def test_pauses_stay_between_their_jitter_and_the_longest_pause(attempt, jitter):
    policy = RetryPolicy(jitter=jitter)

    pause_s = policy.pause_before(attempt)
    assert (1 - jitter) * policy.pause_s <= pause_s <= policy.max_pause_s


@pytest.mark.parametrize(
    ("failure", "safe", "with_lost"),
    [
        (Failure.UNREACHABLE, True, True),
        (Failure.BUSY, True, True),
        (Failure.LOST, False, True),
        (Failure.REFUSED, False, False),
        (Failure.NOT_SERVED, False, False),
        (Failure.RESTRICTED, False, False),
        (Failure.MALFORMED, False, False),
    ],
)
def test_errors_that_are_retried(failure, safe, with_lost):
    error = server_error("no", failure)

    assert RetryPolicy().allows(error) is safe
    assert RetryPolicy(resend_lost=True).allows(error) is with_lost


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attempts": 0}, "RetryPolicy.attempts is 0; give an integer from 1"),
        ({"attempts": 1.5}, "RetryPolicy.attempts is 1.5"),
        ({"attempts": True}, "RetryPolicy.attempts is True"),
        ({"pause_s": -1}, "RetryPolicy.pause_s is -1; give a number from 0 upwards"),
        ({"factor": "2"}, "RetryPolicy.factor is '2'"),
        ({"max_pause_s": float("nan")}, "RetryPolicy.max_pause_s is nan"),
        ({"jitter": 1.5}, "RetryPolicy.jitter is 1.5; give a number from 0 to 1"),
    ],
)
def test_numbers_out_of_their_range(values, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        RetryPolicy(**values)
