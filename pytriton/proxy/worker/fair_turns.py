"""Turns of the threads that serve streams: threads that compute yield to batches that have just arrived.

A computing thread keeps the interpreter for 5 ms (``sys.getswitchinterval``), and to begin, a batch needs two threads:
the one that receives it, and its own. With many streams, it would wait twice for a turn of each of them.
"""

from __future__ import annotations

import threading
import time

from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.worker.in_flight import InFlightBatch

_TURN_S = 0.0005  # guaranteed to each thread: streams of a few short steps are not interrupted
_LONGEST_S = 0.05  # in case the newest batch does not begin


class FairTurns:
    """The turns of the threads that serve the batches of one model instance.

    Args:
        channel: The connection, whose acknowledgements show which batches have begun.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._has_begun = threading.Event()

    def begin(self, in_flight: InFlightBatch) -> None:
        """Acknowledges a batch in the thread that serves it: other threads no longer wait for it."""
        self._channel.acknowledge()
        self._has_begun.set()
        in_flight.turn_s = time.monotonic()

    def give_way(self, in_flight: InFlightBatch) -> None:
        """Waits until all batches that have arrived have begun; called between the steps of a stream."""
        newest = self._channel.unacknowledged
        if not newest or newest == in_flight.gave_way_to:
            return
        now = time.monotonic()
        if now - in_flight.turn_s < _TURN_S:
            return
        in_flight.gave_way_to = newest
        end = now + _LONGEST_S
        while (left_s := end - time.monotonic()) > 0:
            self._has_begun.clear()
            if not self._channel.unacknowledged:
                break
            self._has_begun.wait(left_s)
        in_flight.turn_s = time.monotonic()
