"""The specification of a remote instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytriton.process.payload import FactorySpec


@dataclasses.dataclass(frozen=True)
class InstanceSpec(FactorySpec):
    """Specification of an instance's actor: all that starting and restarting it needs.

    Attributes:
        options: The options of the actor.
        placement_timeout_s: How long to wait at first until the actor has found room in the cluster and started.
        retries: How often a batch whose actor dies is sent to another one.
    """

    options: Mapping[str, Any]
    placement_timeout_s: float
    retries: int
