"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/embeddings``.

The interface is that of https://platform.openai.com/docs/api-reference.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from pytriton.client.core.chunking import send_several
from pytriton.client.core.inputs import Array
from pytriton.gateway import offload
from pytriton.gateway.access import ApiKey, not_allowed
from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import encode, samples_of, with_bytes
from pytriton.gateway.models import Model, Models, Reply
from pytriton.gateway.openai.errors import bad_request
from pytriton.gateway.openai.generation import GeneratedText, Usage, count_tokens, stream_events
from pytriton.gateway.openai.messages import (
    Body,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    GenerationRequest,
    Texts,
)
from pytriton.gateway.openai.models import OpenAIChat, OpenAICompletion, OpenAIEmbeddings, OpenAIModel
from pytriton.gateway.openai.shapes import ChatShape, CompletionShape
from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_bytes, send_json
from pytriton.gateway.streams import EVENTS, send_stream
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
PATHS = {CHAT: OpenAIChat, COMPLETIONS: OpenAICompletion, EMBEDDINGS: OpenAIEmbeddings}
"""The endpoints, and the kind of model that each serves."""

_MAX_CHOICES = 128
_MAX_STOPS = 4
_MAX_TOKENS = 300_000  # of a request; as many as OpenAI takes
_MAX_STOP_LENGTH = 1000  # characters

_FIELD = re.compile(r"(?:at `\$\.|required field `)(\w+)")  # in errors of msgspec

_BodyT = TypeVar("_BodyT", bound="Body")
_ResultT = TypeVar("_ResultT")
_ModelT = TypeVar("_ModelT", bound=OpenAIModel)


class OpenAIEndpoints:
    """Converts requests of OpenAI's API to requests to models, and their responses back.

    Args:
        declared: The text models.
        models: All models.
        max_samples: Maximum number of texts of a request.
    """

    def __init__(self, declared: Sequence[OpenAIModel], models: Models, max_samples: int) -> None:
        self._declared = declared
        self._models = models
        self._max_samples = max_samples

    def names(self, model: str) -> list[str]:
        """Returns the names of a model in OpenAI's API."""
        return list(dict.fromkeys(each.public_name for each in self._declared if each.model == model))

    def model_of(self, name: str) -> str:
        """Returns the model with a name in OpenAI's API; a name that no model has is returned unchanged."""
        return next((each.model for each in self._declared if each.public_name == name), name)

    async def respond(self, request: Request, send: Send, key: ApiKey | None) -> None:
        """Responds to a request to one of the endpoints.

        Raises:
            RequestError: It is refused, or fails before the response begins.
        """
        body = await request.body()
        if request.path == CHAT:
            await self._chat(body, request, send, key)
        elif request.path == COMPLETIONS:
            await self._completions(body, request, send, key)
        else:
            await self._embeddings(body, request, send, key)

    async def _chat(self, body: bytes, request: Request, send: Send, key: ApiKey | None) -> None:
        declared, model = await self._find(body, OpenAIChat, request, key)
        run = functools.partial(offload.run_on_json, body) if declared.template is None else offload.run_function
        params, sample = await run(self._read_chat, body, declared, model.config)
        await self._generate(params, declared, declared.output, model, [sample], request, send, ChatShape())

    async def _completions(self, body: bytes, request: Request, send: Send, key: ApiKey | None) -> None:
        declared, model = await self._find(body, OpenAICompletion, request, key)
        params, samples = await _read(self._read_completion, body, declared, model.config)
        await self._generate(params, declared, declared.output, model, samples, request, send, CompletionShape())

    async def _embeddings(self, body: bytes, request: Request, send: Send, key: ApiKey | None) -> None:
        declared, model = await self._find(body, OpenAIEmbeddings, request, key)
        params, texts, calls = await _read(self._read_embeddings, body, declared, model.config)
        replies = await send_several([model.call(arrays, request) for arrays in calls], model.infer)
        tokens = await count_tokens(declared, texts)
        size = len(body) + offload.size_of_items(len(texts)) + sum(map(offload.size_of, replies))
        response = await offload.run(size, _embedded, replies, declared, params, tokens, model.config.batching)
        await send_bytes(send, response, "application/json")

    # Each of these parses a body and converts it at once: parsed, it may take many times its size, and where one
    # result waited for the next step, those of all requests would wait.

    def _read_chat(
        self, body: bytes, declared: OpenAIChat, config: TritonModelConfig
    ) -> tuple[GenerationRequest, tuple[str, dict[str, Any]]]:
        params, fields = _parsed(body, ChatRequest)
        if not params.messages:
            raise bad_request("messages is empty: give at least one message.", "messages")
        self._check_generation(params, 1)
        prompt = _prompt(declared, params.messages)
        name = declared.messages if declared.template is None else declared.prompt
        sample = _other_inputs(config, fields, name) | {name: prompt}
        params.messages = []
        return params, (prompt, sample)

    def _read_completion(
        self, body: bytes, declared: OpenAICompletion, config: TritonModelConfig, may_decode: bool
    ) -> tuple[GenerationRequest, list[tuple[str, dict[str, Any]]]]:
        params, fields = _parsed(body, CompletionRequest)
        prompts = self._texts(params.prompt, declared, may_decode, "prompt")
        self._check_generation(params, len(prompts))
        others = _other_inputs(config, fields, declared.prompt)
        return params, [(prompt, others | {declared.prompt: prompt}) for prompt in prompts]

    def _read_embeddings(
        self, body: bytes, declared: OpenAIEmbeddings, config: TritonModelConfig, may_decode: bool
    ) -> tuple[EmbeddingsRequest, list[str], list[dict[str, Array]]]:
        params, fields = _parsed(body, EmbeddingsRequest)
        texts = self._texts(params.input, declared, may_decode, "input")
        if params.encoding_format not in (None, "float", "base64"):
            raise bad_request(
                f"encoding_format is {params.encoding_format[:20]!r}: use 'float' or 'base64'.", "encoding_format"
            )
        others = _other_inputs(config, fields, declared.input)
        samples = [others | {declared.input: text} for text in texts]
        return params, texts, samples_of(config, samples, self._max_samples).arrays

    async def _generate(
        self,
        params: GenerationRequest,
        declared: OpenAIModel,
        output: str,
        model: Model,
        samples: list[tuple[str, dict[str, Any]]],
        request: Request,
        send: Send,
        shape: ChatShape | CompletionShape,
    ) -> None:
        size = sum(len(prompt) for prompt, _ in samples) + offload.size_of_items(len(samples))
        inputs = await offload.run(size, _arrays, model.config, [sample for _, sample in samples])
        texts = [
            GeneratedText(model, arrays, output, params.stops, request)
            for arrays in inputs
            for _ in range(params.choices)
        ]
        usage = Usage(declared, [prompt for prompt, _ in samples])
        head = {
            "id": shape.prefix + uuid.uuid4().hex,
            "created": int(time.time()),  # noqa: TID251 - clients expect the date
            "model": params.model,
        }
        if params.stream:
            wants_usage = (params.stream_options or {}).get("include_usage") and declared.count_tokens is not None
            events = stream_events(texts, shape, head, usage if wants_usage else None, request)
            await send_stream(request, send, EVENTS, events)
            return
        generated = await send_several(texts, GeneratedText.whole)
        choices = [shape.choice(index, text, texts[index].reason) for index, text in enumerate(generated)]
        await send_json(send, head | {"object": shape.whole, "choices": choices} | await usage.of(generated))

    async def _find(
        self, body: bytes, kind: type[_ModelT], request: Request, key: ApiKey | None
    ) -> tuple[_ModelT, Model]:
        name = await offload.run(len(body), _model_name, body)
        for declared in self._declared:
            if declared.public_name == name and isinstance(declared, kind):
                if key is not None and not key.may_use(declared.model):
                    raise not_allowed(name, "model")
                model = await self._models.find(declared.model)
                request.model = declared.model
                return declared, model
        names = sorted(
            repr(declared.public_name)
            for declared in self._declared
            if isinstance(declared, kind) and (key is None or key.may_use(declared.model))
        )
        raise RequestError(
            http.HTTPStatus.NOT_FOUND,
            f"There is no model {name[:100]!r} for this endpoint; it has {', '.join(names) or 'no model'}.",
            "model",
        )

    def _texts(
        self, given: Texts, declared: OpenAICompletion | OpenAIEmbeddings, may_decode: bool, field: str
    ) -> list[str]:
        """Returns the texts of a request, some of which may be token ids."""
        if isinstance(given, str):
            return [given]
        single = sum(isinstance(each, int) for each in given)
        if 0 < single < len(given):
            raise bad_request(f"{field} has both texts and single token ids: send a list of either.", field)
        texts = [given] if single else given
        if not 1 <= len(texts) <= self._max_samples:
            raise bad_request(f"The request has {len(texts)} texts; give 1 to {self._max_samples}.", field)
        count = sum(len(each) for each in texts if isinstance(each, list))
        if count > _MAX_TOKENS:
            raise bad_request(f"{field} has {count} token ids, but the limit is {_MAX_TOKENS}.", field)
        decode = declared.decode_tokens
        has_tokens = any(isinstance(each, list) for each in texts)
        if has_tokens and decode is None:
            raise bad_request(f"{field} has token ids, which this model does not accept: send the text.", field)
        if has_tokens and not may_decode:
            raise _TokensError
        return [each if isinstance(each, str) else _decoded(each, decode, field) for each in texts]

    def _check_generation(self, params: GenerationRequest, prompts: int) -> None:
        n, stops = params.choices, params.stops
        if not 1 <= n <= _MAX_CHOICES:
            raise bad_request(f"n is {n}: use 1 to {_MAX_CHOICES}.", "n")
        if n * prompts > self._max_samples:
            raise bad_request(
                f"The request asks for {n * prompts} texts, {n} for each of {prompts} prompts, but the limit is "
                f"{self._max_samples}: send several requests.",
                "n",
            )
        if len(stops) > _MAX_STOPS or not all(1 <= len(stop) <= _MAX_STOP_LENGTH for stop in stops):
            raise bad_request(
                f"stop may have up to {_MAX_STOPS} texts, of 1 to {_MAX_STOP_LENGTH} characters.",
                "stop",
            )


def _model_name(body: bytes) -> str:
    """Returns the name of the model, without parsing the rest."""
    with _valid_body():
        return msgspec.json.decode(body, type=Body).model


def _parsed(body: bytes, kind: type[_BodyT]) -> tuple[_BodyT, dict[str, Any]]:
    with _valid_body():
        fields = msgspec.json.decode(body)
        return msgspec.convert(fields, kind), fields


@contextlib.contextmanager
def _valid_body() -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        raise bad_request(f"{error}.", None if found is None else found[1]) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}.", None) from error


class _TokensError(Exception):
    """A request has token ids, and must be read again where a slow `decode_tokens` delays nothing else."""


async def _read(read: Callable[..., _ResultT], body: bytes, *args: Any) -> _ResultT:
    try:
        return await offload.run_on_json(body, read, body, *args, False)
    except _TokensError:
        return await offload.run_function(read, body, *args, True)


def _decoded(tokens: Any, decode: Any, field: str) -> str:
    try:
        text = decode(tokens)
    except Exception as error:
        message = f"The model's function decode_tokens cannot decode the token ids: {type(error).__name__}: {error}."
        raise bad_request(message, field) from error
    if not isinstance(text, str):
        message = f"The model's function decode_tokens returned a value of type {type(text).__name__}, not a string."
        raise RequestError(http.HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return text


def _other_inputs(config: TritonModelConfig, fields: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Returns the fields of the request that the model has as inputs, except for the input with the text."""
    given = dict(fields)
    if given.get("max_tokens") is None:
        given["max_tokens"] = given.get("max_completion_tokens")
    return {
        spec.name: _other_input(spec, value)
        for spec in config.inputs
        if (value := given.get(spec.name)) is not None and spec.name != text
    }


def _other_input(spec: TensorSpec, value: Any) -> Any:
    value = encode(value).decode() if isinstance(value, dict | list) else value
    if spec.datatype.name != "BYTES":
        return value
    value = with_bytes(value, spec.name, is_binary=spec.is_binary)
    return value.encode() if isinstance(value, str) else value  # once, for what may be thousands of prompts


def _prompt(declared: OpenAIChat, messages: list[dict[str, Any]]) -> str:
    if declared.template is None:
        return encode(messages).decode()
    try:
        prompt = declared.template(messages)
    except Exception as error:
        raise _misfit(f"{type(error).__name__}: {error}") from error
    if not isinstance(prompt, str):
        raise _misfit(f"it returned a value of type {type(prompt).__name__} in place of a string")
    return prompt


def _misfit(reason: str) -> RequestError:
    return bad_request(f"The messages do not fit the model's template: {reason}.", "messages")


def _arrays(config: TritonModelConfig, samples: list[dict[str, Any]]) -> list[dict[str, Array]]:
    return [samples_of(config, sample, 1).arrays[0] for sample in samples]


def _embedded(
    replies: list[Reply], declared: OpenAIEmbeddings, params: EmbeddingsRequest, tokens: int | None, batching: bool
) -> bytes:
    try:
        vectors = [
            np.asarray(row, np.float32).reshape(-1)
            for reply in replies
            for row in (reply.outputs[declared.output] if batching else [reply.outputs[declared.output]])
        ]
    except (KeyError, ValueError) as error:
        message = f"The model has no output {declared.output!r} with a vector of numbers."
        raise RequestError(http.HTTPStatus.INTERNAL_SERVER_ERROR, message) from error
    if params.dimensions is not None and any(len(vector) != params.dimensions for vector in vectors):
        raise bad_request(f"The model returns vectors of {len(vectors[0])} dimensions.", "dimensions")
    is_base64 = params.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    response: dict[str, Any] = {"object": "list", "data": data, "model": params.model}
    if tokens is not None:
        response["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    return encode(response)


def _base64(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
