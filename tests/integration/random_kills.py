"""Random kills of processes under load."""

from __future__ import annotations

import random
import re
import threading
import time

from serving import Load


def kill_at_random(sends, processes, duration_s):
    """Kills processes at random while requests are sent.

    Args:
        sends: Functions that send a number, each called by a thread of its own.
        processes: Returns the processes, any of which may be killed.
        duration_s: How long.

    Returns:
        Pairs of a number and its response, which is text if it is an error; and the processes that were killed.
    """
    done = threading.Event()
    loads = [Load(send, done) for send in sends]
    seeded, victims = random.Random(1), []
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        time.sleep(seeded.uniform(0.05, 1.0))
        living = processes()
        if living:
            victims.append(seeded.choice(living))
            victims[-1].kill()
    done.set()
    for load in loads:
        load.join(60)
        assert not load.is_alive()
    return [response for load in loads for response in load.responses], victims


def check_failures(responses, pattern):
    """Checks that less than half of the requests have failed, and each with an error of this form."""
    failed = [response for _, response in responses if isinstance(response, str)]
    assert len(failed) < len(responses) / 2
    for response in failed:
        assert re.search(pattern, response), response
