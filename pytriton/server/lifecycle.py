"""When the server starts, and how models get there."""

from __future__ import annotations

import dataclasses

from pytriton.server.config import TritonConfig
from pytriton.server.vertex_ai import is_vertex_ai


@dataclasses.dataclass
class TritonLifecyclePolicy:
    """When the server starts, and how models get there.

    Attributes:
        launch_triton_on_startup: Start the server when the `Triton` object is made, so that it gets ready while the
            models are being prepared, rather than in `Triton.run`.
        local_model_store: What is bound before the server starts, and what `TritonConfig.model_repository` has, is
            loaded by the server itself as it starts; it fails to start if a model cannot be loaded. By default, models
            are loaded through the repository API once it is ready, as those are that are bound later.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DEFAULT_POLICY = TritonLifecyclePolicy()
# The server wants to find its default model when it starts.
_VERTEX_AI_POLICY = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)


def policy_for(config: TritonConfig) -> TritonLifecyclePolicy:
    """The policy of a server with these settings, where the user names none."""
    return _VERTEX_AI_POLICY if is_vertex_ai(config) else DEFAULT_POLICY
