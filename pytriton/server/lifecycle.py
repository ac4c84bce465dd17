"""The lifecycle policy: when the server starts, and how it gets its models."""

from __future__ import annotations

import dataclasses

from pytriton.model_config.common import check_switch
from pytriton.server.config import TritonConfig
from pytriton.server.vertex_ai import is_vertex_ai


@dataclasses.dataclass
class TritonLifecyclePolicy:
    """When the server starts, and how it gets its models.

    Attributes:
        launch_triton_on_startup: Start the server at ``with Triton()``, rather than in `Triton.run`, `Triton.serve` or
            `TritonBase.connect`.
        local_model_store: Let the server itself load, as it starts, the models that are bound by then and those of
            `TritonConfig.model_repository`; it fails to start if a model cannot be loaded. By default, models are
            loaded through the repository API once the server is ready, as are those that are bound later.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False

    def __post_init__(self) -> None:
        for name in ("launch_triton_on_startup", "local_model_store"):
            check_switch(f"TritonLifecyclePolicy.{name}", getattr(self, name))


DEFAULT_POLICY = TritonLifecyclePolicy()
# Its default model must exist when the server starts.
VERTEX_AI_POLICY = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)


def policy_for(config: TritonConfig) -> TritonLifecyclePolicy:
    """Returns the default policy of a server with these settings."""
    return VERTEX_AI_POLICY if is_vertex_ai(config) else DEFAULT_POLICY
