"""Flags of requests and responses, and kinds of memory."""

from __future__ import annotations

from typing import NamedTuple

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2

TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory(NamedTuple):
    """The preferred memory for the outputs of a called model: a GPU's, where they may stay, or the host's."""

    type: int
    device_id: int = 0
