"""Notifications: packets of 32 bytes that say where in shared memory a message lies.

Twin of ``backend/wire/notification.h``.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

PROTOCOL_VERSION = 9
"""Raised whenever the layout changes; a different version on the other side is refused."""


class NotificationKind(enum.IntEnum):
    """What a bell rings for."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    RESULT = 4
    RESPONSES = 5
    RETURNED = 6


class Notification(NamedTuple):
    """What travels on the socket: ``offset`` and ``size`` tell where a message lies in the sender's arena."""

    kind: int
    sequence: int
    offset: int
    size: int


NOTIFICATION = struct.Struct("<4q")
