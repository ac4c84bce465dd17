"""Turns of the threads that serve streams: those that compute give way to batches that have just come.

A thread that computes keeps the interpreter for 5 ms (``sys.getswitchinterval``), and a batch needs two threads to
begin: the one that receives it, and its own. With many streams, it would wait for a turn of each of them, twice.
"""

from __future__ import annotations

import threading
import time

from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.worker.in_flight import InFlightBatch

_TURN_S = 0.0005  # which a thread has in any case: streams of a few short steps are not interrupted
_LONGEST_S = 0.05  # in case that the newest batch does not begin


class FairTurns:
    """The turns of the threads that serve the batches of one model instance.

    Args:
        channel: The connection, whose acknowledgements say which batches have begun.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._has_begun = threading.Event()

    def begin(self, in_flight: InFlightBatch) -> None:
        """Acknowledges a batch in the thread that serves it: others need not wait for it any longer."""
        self._channel.acknowledge()
        self._has_begun.set()
        in_flight.turn_s = time.monotonic()

    def give_way(self, in_flight: InFlightBatch) -> None:
        """Waits for batches to begin that have come, once for the newest; called between the steps of a stream."""
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
