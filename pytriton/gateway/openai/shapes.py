"""The format of responses of OpenAI's endpoints."""

from __future__ import annotations

from typing import Any


class ChatShape:
    """The format of chat completions."""

    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, text: str, reason: str) -> dict[str, Any]:
        """Returns a whole text."""
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "finish_reason": reason, "logprobs": None}

    def first(self, index: int) -> dict[str, Any] | None:
        """Returns the chunk before the first piece, if there is one."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Returns a piece of a text."""
        return {"index": index, "delta": {"content": text}, "finish_reason": None}

    def last(self, index: int, reason: str) -> dict[str, Any]:
        """Returns the end of a text."""
        return {"index": index, "delta": {}, "finish_reason": reason}


class CompletionShape:
    """The format of completions."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        """Returns a whole text."""
        return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}

    def first(self, index: int) -> dict[str, Any] | None:
        """Returns the chunk before the first piece, if there is one."""
        return None

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Returns a piece of a text."""
        return self.choice(index, text, None)

    def last(self, index: int, reason: str) -> dict[str, Any]:
        """Returns the end of a text."""
        return self.choice(index, "", reason)
