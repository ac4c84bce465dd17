"""Requests of OpenAI's API: the fields that the gateway reads."""

from __future__ import annotations

from typing import Any

import msgspec

Texts = str | list[str | int | list[int]]
"""Texts, each a string or a list of token ids; a list of token ids alone is one text."""


class Body(msgspec.Struct):
    """Fields of all requests."""

    model: str


class GenerationRequest(Body):
    """Fields of both endpoints that generate text."""

    stream: bool | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def choices(self) -> int:
        """The number of texts to generate for each prompt."""
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

    prompt: Texts = ""


class EmbeddingsRequest(Body, kw_only=True):
    """A request to ``/v1/embeddings``."""

    input: Texts
    encoding_format: str | None = None
    dimensions: int | None = None
