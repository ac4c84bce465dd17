"""The specification of a remote instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytriton.process.payload import FactorySpec


@dataclasses.dataclass(frozen=True)
class InstanceSpec(FactorySpec):
    """Specification of an instance's actor: everything needed to start and restart it.

    Attributes:
        options: The options of the actor.
        placement_timeout_s: How long to wait for the first start, until the cluster has room for the actor and it runs.
        retries: How often a batch whose actor dies is sent to another one.
    """

    options: Mapping[str, Any]
    placement_timeout_s: float
    retries: int
