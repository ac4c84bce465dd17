"""Endpoints of OpenAI's API for text models."""

from __future__ import annotations

from pytriton.gateway.openai.models import OpenAIChat, OpenAICompletion, OpenAIEmbeddings, OpenAIModel

__all__ = ["OpenAIChat", "OpenAICompletion", "OpenAIEmbeddings", "OpenAIModel"]
