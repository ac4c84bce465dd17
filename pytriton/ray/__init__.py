"""More than one machine: replicas of a server as Ray actors, and model instances on other nodes."""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"pytriton.ray needs Ray: pip install 'pytriton[ray]' ({error}).") from error

from pytriton.ray.remote_instance import RemoteInstance

__all__ = ["RemoteInstance"]
