"""Notifications: packets of 32 bytes with the location of a message in shared memory.

Counterpart of ``backend/wire/notification.h``.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

PROTOCOL_VERSION = 18
"""The version of the wire format, raised with every change. A peer with another version is refused."""


class NotificationKind(enum.IntEnum):
    """The kind of a notification."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    RESULT = 4
    RESPONSES = 5
    RETURNED = 6
    WARMUP = 7


PAGE_LOCKED = 1
"""Flag in the size of WELCOME: the worker page-locks the backend's arena."""

OPENS_GPU_MEMORY = 2
"""Flag in the size of WELCOME: the worker can open the GPU memory that HELLO names."""


class Notification(NamedTuple):
    """A notification; ``offset`` and ``size`` are the location of a message in the sender's arena."""

    kind: int
    sequence: int
    offset: int
    size: int


NOTIFICATION = struct.Struct("<4q")
