"""Texts that models generate: whole, or as a stream of events."""

from __future__ import annotations

import asyncio
import codecs
import http
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from pytriton.client.core.chunking import MAX_PARTS_IN_FLIGHT
from pytriton.client.core.inputs import Array
from pytriton.gateway import offload
from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import encode
from pytriton.gateway.models import Model, Reply
from pytriton.gateway.openai.errors import error_body
from pytriton.gateway.openai.models import OpenAIModel
from pytriton.gateway.openai.shapes import ChatShape, CompletionShape
from pytriton.gateway.openai.stop import StopSequences
from pytriton.gateway.request import Request
from pytriton.gateway.streams import check_backlog, stream_error

LOGGER = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"
_REASON = "finish_reason"  # an output that a model may have


class GeneratedText:
    """One text that is being generated."""

    def __init__(
        self, model: Model, arrays: Mapping[str, Array], output: str, stops: list[str], request: Request
    ) -> None:
        self._model = model
        self._output = output
        self._stop = StopSequences(stops)
        self._call = model.call(arrays, request)
        self.reason = "stop"

    async def pieces(self, max_backlog: float = math.inf) -> AsyncGenerator[str, None]:
        """Yields the text piece by piece.

        Args:
            max_backlog: How many bytes may arrive while the pieces before them are being sent.

        Raises:
            RequestError: The model failed, or is faster than that.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stream = self._model.stream(self._call)
        try:
            async for reply in _each(stream, max_backlog):
                array = reply.outputs.get(self._output)
                if array is None:
                    raise RequestError(
                        http.HTTPStatus.INTERNAL_SERVER_ERROR, f"The model has no output {self._output!r}."
                    )
                reason = reply.outputs.get(_REASON)
                if reason is not None and reason.size:
                    self.reason = _decoded(reason.ravel()[-1]) or self.reason
                raw = b"".join(each if isinstance(each, bytes) else str(each).encode() for each in array.ravel())
                if piece := self._stop.add(decoder.decode(raw)):
                    yield piece
                if self._stop.found:
                    self.reason = "stop"
                    return
            if piece := self._stop.add(decoder.decode(b"", True)) + self._stop.rest():
                yield piece
        finally:
            await stream.aclose()

    async def whole(self) -> str:
        """Waits for the whole text."""
        return "".join([piece async for piece in self.pieces()])


async def _each(stream: AsyncGenerator[Sequence[Reply], None], max_backlog: float) -> AsyncIterator[Reply]:
    async for replies in stream:
        check_backlog(replies, max_backlog)
        for reply in replies:
            yield reply


class Usage:
    """Counts tokens, if the model declares a function for it."""

    def __init__(self, declared: OpenAIModel, prompts: Sequence[str]) -> None:
        self._declared = declared
        self._prompts = prompts

    async def of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the field ``usage`` of the response with these texts; nothing if the model cannot count."""
        prompt = await count_tokens(self._declared, self._prompts)
        completion = await count_tokens(self._declared, texts)
        if prompt is None or completion is None:
            return {}
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": counts}


async def count_tokens(declared: OpenAIModel, texts: Sequence[str]) -> int | None:
    """Counts the tokens of texts with the model's function, if it declares one; in a thread, since it may be slow."""
    count = declared.count_tokens
    if count is None:
        return None
    try:
        return await offload.run_function(lambda: int(sum(map(count, texts))))
    except Exception as error:
        LOGGER.exception("The function count_tokens of %r failed.", declared.public_name)
        message = f"The model's function count_tokens failed: {type(error).__name__}: {error}."
        raise RequestError(http.HTTPStatus.INTERNAL_SERVER_ERROR, message) from error


async def stream_events(
    texts: Sequence[GeneratedText],
    shape: ChatShape | CompletionShape,
    head: Mapping[str, Any],
    usage: Usage | None,
    request: Request,
) -> AsyncGenerator[bytes, None]:
    """Yields the events of all texts, as their pieces arrive; an error is the last one."""
    fields = {**head, "object": shape.chunk} | ({} if usage is None else {"usage": None})

    def event(choices: list[dict[str, Any]], more: Mapping[str, Any] | None = None) -> bytes:
        return b"data: %s\n\n" % encode({**fields, "choices": choices, **(more or {})})

    pieces: asyncio.Queue[tuple[int, str | RequestError | None]] = asyncio.Queue(maxsize=len(texts))
    places = asyncio.Semaphore(MAX_PARTS_IN_FLIGHT)

    async def collect(index: int, text: GeneratedText) -> None:
        async with places:
            try:
                async for piece in text.pieces(request.budget.max_stream_backlog):
                    await pieces.put((index, piece))
                await pieces.put((index, None))
            except RequestError as error:
                await pieces.put((index, error))

    tasks = [asyncio.ensure_future(collect(index, text)) for index, text in enumerate(texts)]
    generated: list[list[str]] = [[] for _ in texts]
    begun: set[int] = set()
    left = len(texts)
    try:
        while left:
            index, piece = await pieces.get()
            if isinstance(piece, RequestError):
                raise piece
            if index not in begun and (first := shape.first(index)) is not None:
                yield event([first])
            begun.add(index)
            if piece is None:
                left -= 1
                yield event([shape.last(index, texts[index].reason)])
            else:
                if usage is not None:
                    generated[index].append(piece)
                yield event([shape.piece(index, piece)])
        if usage is not None:
            yield event([], await usage.of(["".join(text) for text in generated]))
        yield _DONE
    except (RequestError, asyncio.CancelledError) as error:  # raised by the model, or by the sender
        failure = stream_error(request, error, has_begun=bool(begun))
        yield b"data: %s\n\n" % encode(error_body(failure))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _decoded(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
