"""OpenAI's endpoints, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import serving
from gateways import LIMIT_S, gateway_of

from pytriton.decorators import batch
from pytriton.gateway import OpenAIChat, OpenAICompletion, OpenAIEmbeddings, create_key
from pytriton.model_config import ModelConfig, Tensor

HELLO = [{"role": "user", "content": "one two three"}]


def text(name, **settings):
    return Tensor(name=name, dtype=bytes, shape=(1,), **settings)


@batch
def echo_words(messages, max_tokens=None):
    words = json.loads(messages[0, 0])[-1]["content"].split(" ")
    if words == ["fail"]:
        raise ValueError("no such luck")
    limit = len(words) if max_tokens is None else int(max_tokens[0, 0])
    for number, word in enumerate(words[:limit]):
        reason = "length" if number + 1 == limit < len(words) else "stop"
        yield {"text": np.array([[f"{word} ".encode()]]), "finish_reason": np.array([[reason.encode()]])}
        if word == "break":
            raise ValueError("broken")


@batch
def cut(messages):
    """Gives no reason before the end, and then one that a stop sequence overrides."""
    yield {"text": np.array([[b"one two "]]), "finish_reason": np.array([[b""]], object)}
    yield {"text": np.array([[b"three"]]), "finish_reason": np.array([[b"length"]])}


@batch
def upper(prompt, temperature=None):
    heat = b"" if temperature is None else b"%g" % temperature[0, 0]
    return {"text": np.array([[each.upper() + heat] for each in prompt[:, 0]], object)}


@batch
def embed(text):
    return {"embedding": np.array([[len(each), 0.5] for each in text[:, 0]], np.float32)}


@batch
def complete(prompt, suffix):
    return {"text": prompt + suffix[:, :1].astype("S1")}


def bind_text_models(triton):
    max_tokens = Tensor(name="max_tokens", dtype=np.int32, shape=(1,), optional=True)
    temperature = Tensor(name="temperature", dtype=np.float32, shape=(1,), optional=True)
    one = ModelConfig(max_batch_size=1, decoupled=True)
    triton.bind("Parrot", echo_words, [text("messages"), max_tokens], [text("text"), text("finish_reason")], config=one)
    triton.bind("Cut", cut, [text("messages")], [text("text"), text("finish_reason")], config=one)
    triton.bind("Upper", upper, [text("prompt"), temperature], [text("text")], config=ModelConfig(max_batch_size=8))
    triton.bind(
        "Complete", complete, [text("prompt"), text("suffix")], [text("text")], config=ModelConfig(max_batch_size=8)
    )
    vector = Tensor(name="embedding", dtype=np.float32, shape=(2,))
    triton.bind("Embed", embed, [text("text")], [vector], config=ModelConfig(max_batch_size=8))


def last_message(messages):
    return messages[-1]["content"]


def words_of(given):
    return len(given.split())


def letters_of(tokens):
    if len(tokens) == 7:
        raise SystemExit
    return "".join(chr(ord("a") + token) for token in tokens)


DECLARED = (
    OpenAIChat("Parrot", count_tokens=words_of),
    OpenAIChat("Cut"),
    OpenAIChat("Upper", name="shout", template=last_message),
    OpenAICompletion("Upper", count_tokens=words_of),
    OpenAICompletion("Complete"),
    OpenAICompletion("Upper", name="token_ids", decode_tokens=letters_of),
    OpenAIEmbeddings("Embed", name="vectors", count_tokens=words_of),
    OpenAIEmbeddings("Embed", name="vectors_of_token_ids", decode_tokens=letters_of),
)


@pytest.fixture(scope="module")
def text_gateway(served):
    bind_text_models(served)
    with gateway_of(served, openai=DECLARED) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(text_gateway):
    with openai.OpenAI(base_url=f"{text_gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def client_of(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


def test_chat(client):
    response = client.chat.completions.create(model="Parrot", messages=HELLO)
    assert response.choices[0].message.content == "one two three "
    assert response.choices[0].finish_reason == "stop"
    assert response.usage.completion_tokens == 3
    assert response.model == "Parrot"


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="Parrot", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert pieces == ["one ", "two ", "three "]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 3
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_of_a_model_that_does_not_count_tokens_has_no_usage(client):
    stream = client.chat.completions.create(
        model="shout", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_that_cannot_count_tokens(served, text_gateway, stream):
    def count(given):
        return np.int64(len(given)) if given != "one two three " else 1 / 0

    declared = [OpenAIChat("Parrot", count_tokens=count)]
    options = {"stream_options": {"include_usage": True}} if stream else {}
    with gateway_of(served, openai=declared) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.APIError, match="count_tokens failed: ZeroDivisionError"):
            list(client.chat.completions.create(model="Parrot", messages=HELLO, stream=stream, **options))
        response = client.chat.completions.create(model="Parrot", messages=HELLO, max_tokens=1)
        assert response.usage.completion_tokens == len("one ")


def test_chat_with_the_asyncio_client(text_gateway):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{text_gateway.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(model="Parrot", messages=HELLO, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(main()) == "one two three "


def test_fields_are_passed_to_inputs_of_the_same_name(client):
    for name in ("max_tokens", "max_completion_tokens"):
        response = client.chat.completions.create(model="Parrot", messages=HELLO, **{name: 2})
        assert response.choices[0].message.content == "one two "
        assert response.choices[0].finish_reason == "length"
    response = client.completions.create(model="Upper", prompt="a", temperature=0.5)
    assert response.choices[0].text == "A0.5"


def test_stop_sequences_are_found_across_pieces(client):
    response = client.chat.completions.create(model="Parrot", messages=HELLO, stop=["o th", "zzz"])
    assert response.choices[0].message.content == "one tw"
    stream = client.chat.completions.create(model="Parrot", messages=HELLO, stop="o th", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one tw"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_the_reason_whatever_the_model_gives(client, stream):
    response = client.chat.completions.create(model="Cut", messages=HELLO, stop="thr", stream=stream)
    last = list(response)[-1].choices[0] if stream else response.choices[0]
    assert last.finish_reason == "stop"


def test_several_choices(client):
    response = client.chat.completions.create(model="Parrot", messages=HELLO, n=3)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert {choice.message.content for choice in response.choices} == {"one two three "}
    texts = ["", ""]
    for chunk in client.chat.completions.create(model="Parrot", messages=HELLO, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one two three "] * 2


def test_a_template_renders_the_prompt(client):
    response = client.chat.completions.create(model="shout", messages=HELLO)
    assert response.choices[0].message.content == "ONE TWO THREE"
    assert response.usage is None
    with pytest.raises(openai.BadRequestError, match="template"):
        client.chat.completions.create(model="shout", messages=[{"role": "user"}])


def test_slow_functions_of_the_user_do_not_delay_other_requests(served, text_gateway):
    entered, released = threading.Event(), threading.Event()

    def slow(given):
        entered.set()
        released.wait(2 * LIMIT_S)
        return 1

    def slow_template(messages):
        slow(messages)
        return "a"

    declared = (
        OpenAIChat("Upper", name="templated", template=slow_template),
        OpenAIChat("Upper", name="counted", template=last_message, count_tokens=slow),
        OpenAIEmbeddings("Embed", count_tokens=slow),
    )
    chat = {"messages": HELLO, "stream_options": {"include_usage": True}}
    with gateway_of(served, openai=declared) as gateway:
        for path, body in (
            ("/v1/chat/completions", chat | {"model": "templated"}),
            ("/v1/chat/completions", chat | {"model": "counted"}),
            ("/v1/chat/completions", chat | {"model": "counted", "stream": True}),
            ("/v1/embeddings", {"model": "Embed", "input": "a"}),
        ):
            entered.clear()
            released.clear()
            asking = serving.Background(functools.partial(gateway.send, "POST", path, json.dumps(body).encode()))
            assert entered.wait(LIMIT_S)
            assert gateway.get("/health/live").status == 200
            released.set()
            assert asking.finish().result.status == 200


def test_completions(client):
    response = client.completions.create(model="Upper", prompt=["a b", "c"])
    assert [choice.text for choice in response.choices] == ["A B", "C"]
    assert response.usage.total_tokens == 6
    stream = client.completions.create(model="Upper", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "A"


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_embeddings(client, encoding):
    settings = {} if encoding is None else {"encoding_format": encoding}
    response = client.embeddings.create(model="vectors", input=["a", "bcd"], **settings)
    vectors = [each.embedding for each in response.data]
    if encoding == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(vector), "<f4").tolist() for vector in vectors]
    assert vectors == [[1, 0.5], [3, 0.5]]
    assert response.usage.total_tokens == 2


@pytest.mark.parametrize(
    ("given", "lengths"), [([0, 1, 2], [3]), ([[0], [1, 2]], [1, 2]), (["a", [0, 1]], [1, 2]), ([[]], [0])]
)
def test_texts_may_be_token_ids(client, given, lengths):
    completion = client.completions.create(model="token_ids", prompt=given)
    assert [len(choice.text) for choice in completion.choices] == lengths
    response = client.embeddings.create(model="vectors_of_token_ids", input=given, encoding_format="float")
    assert [each.embedding[0] for each in response.data] == lengths


@pytest.mark.parametrize(
    ("model", "given", "error"),
    [
        ("Upper", [0, 1], "prompt has token ids, which this model does not accept"),
        ("Upper", [[0, 1]], "prompt has token ids, which this model does not accept"),
        ("token_ids", ["a", 1], "prompt has both texts and single token ids"),
        ("token_ids", [[0], 1], "prompt has both texts and single token ids"),
        ("token_ids", [0] * 300_001, "prompt has 300001 token ids, but the limit is 300000"),
        ("token_ids", [[-1000]], "decode_tokens cannot decode the token ids: ValueError"),
        ("token_ids", [True], "Expected"),
        ("token_ids", [], "The request has 0 texts"),
    ],
)
def test_token_ids_that_are_refused(client, model, given, error):
    with pytest.raises(openai.BadRequestError, match=error) as caught:
        client.completions.create(model=model, prompt=given)
    assert caught.value.param == "prompt"


def test_a_function_that_exits_fails_its_request(client):
    with pytest.raises(openai.InternalServerError, match="Internal error"):
        client.completions.create(model="token_ids", prompt=[0] * 7)
    assert client.completions.create(model="token_ids", prompt=[0]).choices[0].text == "A"


def test_models(client, text_gateway):
    names = {model.id for model in client.models.list()}
    assert {"Parrot", "shout", "Upper", "vectors", "Double"} <= names
    assert "Embed" not in names
    assert client.models.retrieve("vectors").id == "vectors"
    assert text_gateway.get("/v1/models/").json() == text_gateway.get("/v1/models").json()


def test_a_name_with_slashes(served, text_gateway):
    with gateway_of(served, openai=[OpenAIChat("Parrot", name="org/birds/echo_words")]) as gateway:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            assert client.models.retrieve("org/birds/echo_words").id == "org/birds/echo_words"
            assert client.chat.completions.create(model="org/birds/echo_words", messages=HELLO).choices
        assert gateway.get("/v1/models/org/birds").status == 404


def test_errors(client):
    with pytest.raises(openai.NotFoundError, match=r"no model 'Nobody' for this endpoint; it has .*'Parrot'"):
        client.chat.completions.create(model="Nobody", messages=HELLO)
    with pytest.raises(openai.NotFoundError, match="for this endpoint"):
        client.completions.create(model="Parrot", prompt="a")
    with pytest.raises(openai.BadRequestError, match="n is 0"):
        client.chat.completions.create(model="Parrot", messages=HELLO, n=0)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="Parrot", messages="hello")
    with pytest.raises(openai.BadRequestError, match="2 dimensions"):
        client.embeddings.create(model="vectors", input="a", dimensions=7)
    fail = [{"role": "user", "content": "fail"}]
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="no such luck"):
            client.chat.completions.create(model="Parrot", messages=fail, stream=stream)


@pytest.mark.parametrize("content", [None, 5, ["a"], {"b64": "/w=="}])
def test_messages_of_which_a_template_makes_no_text_are_refused(client, content):
    with pytest.raises(openai.BadRequestError, match="in place of a string") as caught:
        client.chat.completions.create(model="shout", messages=[{"role": "user", "content": content}])
    assert caught.value.param == "messages"


def test_errors_have_the_codes_and_fields_of_openai(client, text_gateway):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="Nobody", messages=HELLO)
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("Nobody")
    assert caught.value.code == "model_not_found"
    for messages in ("hello", []):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="Parrot", messages=messages)
        assert caught.value.param == "messages"
    response = text_gateway.send("POST", "/v1/chat/completions", b'{"messages": []}', content_type="application/json")
    assert response.json()["error"]["param"] == "model"


def test_an_error_within_a_stream(client):
    messages = [{"role": "user", "content": "one break"}]
    with pytest.raises(openai.APIError, match="broken"):
        list(client.chat.completions.create(model="Parrot", messages=messages, stream=True))


def test_keys(served, text_gateway, tmp_path):
    path = tmp_path / "keys.json"
    key = create_key(path, "alice", models=["Parrot"])
    with gateway_of(served, openai=DECLARED, api_keys=path) as gateway:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["Parrot"]
            assert client.chat.completions.create(model="Parrot", messages=HELLO).choices
            with pytest.raises(openai.PermissionDeniedError):
                client.completions.create(model="Upper", prompt="a")
            with pytest.raises(openai.PermissionDeniedError, match="may not use model 'vectors'"):
                client.embeddings.create(model="vectors", input="a")
        stranger = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="wrong", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError) as caught:
            stranger.models.list()
        assert caught.value.code == "invalid_api_key"


def test_requests_count_in_the_statistics_of_the_model(served, text_gateway):
    with gateway_of(served, openai=DECLARED) as gateway:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            client.completions.create(model="Upper", prompt="a")
            client.chat.completions.create(model="shout", messages=HELLO)
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model="Upper", prompt="a", n=0)
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="Nobody", prompt="a")
        models = {model["name"]: model for model in gateway.get("/status").json()["models"]}
    assert (models["Upper"]["requests"], models["Upper"]["failed"]) == (3, 1)
    assert models["Upper"]["errors"][0]["status"] == 400
    assert "Nobody" not in models


def peak_bytes(work):
    """The memory that Python allocates while something works."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_only_two_parsed_bodies_are_in_memory_at_a_time(text_gateway):
    messages = [{"": 1}] * 150_000 + HELLO  # 35 MB, once they are parsed
    body = json.dumps({"model": "Parrot", "messages": messages}, separators=(",", ":")).encode()

    def chat(_):
        return text_gateway.send("POST", "/v1/chat/completions", body, content_type="application/json").status

    def chats():
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(chat, range(8))) == {200}

    peak = peak_bytes(chats)
    assert peak < 190e6, peak


def test_a_field_is_in_memory_once_for_all_prompts(client):
    prompts, suffix = ["a"] * 500, "bc" * 100_000

    def complete_all():
        response = client.completions.create(model="Complete", prompt=prompts, suffix=suffix)
        assert [choice.text for choice in response.choices] == ["ab"] * 500

    peak = peak_bytes(complete_all)
    assert peak < 30e6, peak
