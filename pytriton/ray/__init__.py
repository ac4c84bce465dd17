"""More than one machine: replicas of a server as Ray actors, to which clients send requests directly."""

from __future__ import annotations
