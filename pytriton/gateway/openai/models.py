"""Declares bound models as text models of OpenAI's API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError

ChatTemplate = Callable[[Sequence[Mapping[str, Any]]], str]
"""Creates a prompt from the messages of a chat."""

TokenDecoder = Callable[[Sequence[int]], str]
"""Converts token ids to text."""


@dataclasses.dataclass(frozen=True)
class OpenAIModel:
    """Settings of all text models.

    The fields of a request, such as ``temperature`` or ``max_tokens``, are passed to the inputs of the same names, if
    the model has them; objects and lists, such as ``messages`` or ``tools``, as JSON. An output ``finish_reason`` gives
    the reason why the text ends, for example ``length``; without it, the reason is ``stop``.

    Attributes:
        model: The name that the model is bound to.
        name: Its name in OpenAI's API; the same by default.
        count_tokens: Counts the tokens of a text, for ``usage``; without it, responses have no ``usage``. It is called
            in threads, up to two at a time.
    """

    model: str
    name: str = ""
    count_tokens: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        """Checks the names."""
        for name in (self.model, self.public_name):
            if not isinstance(name, str) or not name:
                raise PyTritonBadParameterError(f"{type(self).__name__}: the name is {name!r}; give a string.")

    @property
    def public_name(self) -> str:
        """Its name in OpenAI's API."""
        return self.name or self.model


@dataclasses.dataclass(frozen=True)
class OpenAIChat(OpenAIModel):
    """A model that continues chats: ``/v1/chat/completions``.

    A decoupled model yields the text piece by piece; any other model returns it as a whole.

    Attributes:
        output: The output with the text: BYTES of shape ``(1,)``.
        messages: The input that gets the messages as JSON, if there is no ``template``.
        template: Creates the prompt from the messages, such as a tokenizer's ``apply_chat_template``. It is called in
            threads, up to two at a time.
        prompt: The input that gets the prompt, if there is a ``template``.

    Examples:
        >>> OpenAIChat("Llama", output="text").public_name
        'Llama'
    """

    output: str = "text"
    messages: str = "messages"
    template: ChatTemplate | None = None
    prompt: str = "prompt"


@dataclasses.dataclass(frozen=True)
class OpenAICompletion(OpenAIModel):
    """A model that continues texts: ``/v1/completions``.

    Attributes:
        prompt: The input with the text: BYTES of shape ``(1,)``.
        output: The output with its continuation: BYTES of shape ``(1,)``.
        decode_tokens: Converts prompts that clients send as token ids to text, such as a tokenizer's ``decode``;
            without it, they are refused. It is called in threads, up to two at a time.
    """

    prompt: str = "prompt"
    output: str = "text"
    decode_tokens: TokenDecoder | None = None


@dataclasses.dataclass(frozen=True)
class OpenAIEmbeddings(OpenAIModel):
    """A model that computes embeddings of texts: ``/v1/embeddings``.

    Attributes:
        input: The input with a text: BYTES of shape ``(1,)``.
        output: The output with its embedding, a vector.
        decode_tokens: Converts texts that clients send as token ids back to text, such as a tokenizer's ``decode``;
            without it, they are refused. It is called in threads, up to two at a time.
    """

    input: str = "text"
    output: str = "embedding"
    decode_tokens: TokenDecoder | None = None
