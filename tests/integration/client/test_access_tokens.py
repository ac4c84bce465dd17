"""Servers that require a token everywhere, and clients with and without it."""

from __future__ import annotations

import numpy as np
import pytest
from client_kinds import CLASSES, STREAM_KINDS, WAYS, config_for, every_kind, open_client, url_of
from serving import bind_floats, free_config, statistics_of, wait_until

from pytriton.cli.main import TOKEN_VARIABLE, main
from pytriton.client import Failure, ModelClient, PyTritonClientError, PyTritonClientInferenceServerError
from pytriton.client.auth import create_auth_headers
from pytriton.triton import VALID_TRITON_ENDPOINTS, Triton, TritonSecurityConfig

TOKEN = "open-sesame"
LARGE = np.ones(100_000, np.float32)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.fixture(scope="module")
def triton():
    """A server whose every endpoint is restricted."""
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=sorted(VALID_TRITON_ENDPOINTS))
    with Triton(config=free_config(), security_config=security) as triton:
        triton.run()
        yield triton


@pytest.fixture(scope="module")
def open_to_all():
    """A server that requires its token for shared memory and statistics only."""
    security = TritonSecurityConfig(access_token=TOKEN, restricted_endpoints=["shared-memory", "statistics"])
    with Triton(config=free_config(), security_config=security) as triton:
        triton.run()
        yield triton


@pytest.fixture
def as_another_user(monkeypatch):
    """Hides the token that the command line finds for one's own servers."""
    monkeypatch.setattr("pytriton.cli.servers.running_servers", list)


def is_refused(call):
    """Whether the error says what to do."""
    with pytest.raises(PyTritonClientInferenceServerError, match=r"restricts .* the token as access_token") as caught:
        call()
    return caught.value.failure is Failure.RESTRICTED


@every_kind
def test_the_token_gives_access_to_everything(kind, protocol, triton, name):
    bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name, access_token=TOKEN) as client:
        client.wait_for_model(10)
        assert client.model_config.model_name == name
        assert client.infer_sample([1])["y"] == [1]
        assert client.infer_batch([[1], [2]])["y"].tolist() == [[1], [2]]
        if hasattr(CLASSES[kind], "load_model"):
            client.wait_for_server(10)
            client.load_model()
            assert client.infer_sample([2])["y"] == [2]
            client.unload_model()


@every_kind
@pytest.mark.parametrize("token", [None, "open-barley"])
def test_without_the_token_everything_is_refused(kind, protocol, triton, name, token):
    bind_floats(triton, name, echo, config=config_for(kind))
    url = url_of(triton, protocol)
    with open_client(kind, url, name, access_token=token) as client:
        assert is_refused(lambda: client.wait_for_model(10))
        assert is_refused(lambda: client.model_config)
        assert is_refused(lambda: client.infer_sample([1]))
        if hasattr(CLASSES[kind], "load_model"):
            assert is_refused(lambda: client.wait_for_server(10))
            assert is_refused(client.load_model)
            assert is_refused(client.unload_model)


@every_kind
def test_inference_is_refused_even_if_the_client_knows_the_configuration(kind, protocol, triton, name):
    bind_floats(triton, name, echo, config=config_for(kind))
    url = url_of(triton, protocol)
    with ModelClient(url, name, access_token=TOKEN) as other:
        known = {"model_config": other.model_config, "ensure_model_is_ready": False}
    with open_client(kind, url, name, **known) as client:
        for _ in range(50):  # gRPC sometimes loses what a server says to a stream
            assert is_refused(lambda: client.infer_sample([1]))
        assert client.infer_sample([1], headers=create_auth_headers(TOKEN, protocol))["y"] == [1]
    wait_until(lambda: statistics_of(triton, name)["inference_count"] == 1)


@pytest.mark.parametrize(("kind", "protocol"), [way for way in WAYS if way[0] not in STREAM_KINDS])
def test_shared_memory_requires_the_token(open_to_all, name, kind, protocol):
    bind_floats(open_to_all, name, echo)
    url = url_of(open_to_all, protocol)
    with open_client(kind, url, name, shared_memory=True) as client:
        assert is_refused(lambda: client.infer_sample(LARGE))
        assert client.infer_sample([1])["y"] == [1]
    with open_client(kind, url, name, shared_memory=True, access_token=TOKEN) as client:
        assert (client.infer_sample(LARGE)["y"] == LARGE).all()


@pytest.mark.usefixtures("as_another_user")
def test_the_command_line_accepts_the_token(protocol, triton, name, capsys, monkeypatch):
    bind_floats(triton, name, echo)
    url = url_of(triton, protocol)
    for words in (["infer", url, name, "x=1"], ["models", url]):
        assert main(words) == 1
        assert f"as --token. The environment variable {TOKEN_VARIABLE} sets it, too" in capsys.readouterr().err
        assert main([*words, "--token", TOKEN]) == 0
        with monkeypatch.context() as environment:
            environment.setenv(TOKEN_VARIABLE, TOKEN)
            assert main(words) == 0


@pytest.mark.usefixtures("as_another_user")
def test_models_are_listed_without_their_counts(protocol, open_to_all, name, capsys):
    bind_floats(open_to_all, name, echo)

    def shown(*words):
        assert main(["models", url_of(open_to_all, protocol), *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        return lines[lines.index(f"{name} version 1: READY") + 3]

    assert shown() == "  counts  not shown: the server requires its token for that"
    assert shown("--token", TOKEN) == "  counts  0 inferences, 0 executions, 0 failed"


def test_errors_do_not_contain_the_token(triton, protocol):
    with ModelClient(url_of(triton, protocol), "no-such-model", access_token=TOKEN, init_timeout_s=0.2) as client:
        with pytest.raises(PyTritonClientError) as caught:
            client.infer_sample([1])
        assert TOKEN not in caught.value.message
        assert TOKEN not in repr(client)
