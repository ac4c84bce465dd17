"""The specification of a remote instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytriton.model_config.model_spec import ModelSpec


@dataclasses.dataclass(frozen=True)
class InstanceSpec:
    """Specification of an instance's actor: all that starting and restarting it needs.

    Attributes:
        model: The model.
        number: The index of the instance, from 0.
        payload: The model, the factory and its arguments, pickled.
        options: The options of the actor.
        placement_timeout_s: How long to wait at first until the actor has found room in the cluster and started.
        retries: How often a batch whose actor dies is sent to another one.
    """

    model: ModelSpec
    number: int
    payload: bytes
    options: Mapping[str, Any]
    placement_timeout_s: float
    retries: int

    @property
    def name(self) -> str:
        """Names the instance in messages."""
        return f"model {self.model.name!r} (instance {self.number})"
