"""Requests of OpenAI's API, as far as the gateway reads them."""

from __future__ import annotations

from typing import Any

import msgspec


class Body(msgspec.Struct):
    """What all requests have."""

    model: str


class GenerationRequest(Body):
    """What both endpoints that generate text take."""

    stream: bool | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def choices(self) -> int:
        """How many texts are wanted for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        """Sequences at which a text ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(GenerationRequest, kw_only=True):
    """A request to ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]


class CompletionRequest(GenerationRequest, kw_only=True):
    """A request to ``/v1/completions``."""

    prompt: str | list[str] = ""


class EmbeddingsRequest(Body, kw_only=True):
    """A request to ``/v1/embeddings``."""

    input: str | list[str]
    encoding_format: str | None = None
    dimensions: int | None = None
