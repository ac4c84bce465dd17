"""Streams that are cancelled at any moment, while responses come as fast as they can: others are not affected."""

from __future__ import annotations

import concurrent.futures
import random
import time

import pytest
from serving import bind_floats, running_triton, server_of
from streaming import bind_stream, count, count_async, responses, stream_to, streamed
from watching import Watched

CLIENTS = 8
LONGEST_PAUSE_S = 0.003
STEPS = 3


def plain(requests):
    for value in range(1_000_000_000):
        yield responses(requests, value)


@pytest.fixture
def endless():
    """A server with models that yield without a pause, for ever or a few times, and one that responds once."""
    with running_triton() as triton:
        bind_stream(triton, "asynchronous", Watched().yields_at_once)
        bind_stream(triton, "plain", plain)
        bind_stream(triton, "short", count)
        bind_stream(triton, "short_asynchronous", count_async)
        bind_floats(triton, "once", lambda requests: [{"y": request["x"]} for request in requests])
        triton.run()
        yield triton


def cancel_streams(triton, models, deadline, rng):
    count = 0
    while time.monotonic() < deadline:
        with stream_to(triton) as stream:
            model = rng.choice(models)
            for _ in range(rng.choice((1, 1, 3))):
                stream.send(model, STEPS)
            assert stream.reply().error is None
            time.sleep(rng.random() * LONGEST_PAUSE_S)
            if model in FINITE and rng.random() < FINISHED:
                stream.finish()
        count += 1
    return count


FINITE = ("short", "short_asynchronous", "once")
FINISHED = 0.3
SLOW = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.mark.parametrize(
    ("models", "seconds"),
    [
        (("asynchronous", "plain", "once"), 3),
        (FINITE, 2),
        pytest.param(("asynchronous", "plain", "once"), 60, marks=SLOW),
        pytest.param(("asynchronous",), 60, marks=SLOW),
        pytest.param(("plain", "once"), 60, marks=SLOW),
        pytest.param(FINITE, 120, marks=SLOW),
    ],
)
def test_streams_that_are_cancelled_at_any_moment_leave_the_server_as_it_was(endless, models, seconds):
    server = server_of(endless)
    deadline = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        counts = [
            pool.submit(cancel_streams, endless, models, deadline, random.Random(number)) for number in range(CLIENTS)
        ]
        assert sum(each.result() for each in counts) > 10 * seconds

    assert server_of(endless) == server
    assert streamed(endless, "once", 7)[0] == [7]


def test_a_server_that_stops_just_after_streams_were_cancelled_exits_in_order(endless):
    process = endless._session.server._process
    for _ in range(8):
        with stream_to(endless) as stream:
            assert stream.send("plain", 0).reply().y == 0
    endless.stop()
    assert process.returncode == 0
