"""Every exception of the clients, raised by a server or a misbehaving socket."""

from __future__ import annotations

import contextlib
import functools
import resource

import numpy as np
import pytest
import tritonclient.http
from client_kinds import CLASSES, config_for, every_kind, every_kind_that_loads, known, open_client, url_of
from peers import HOST, hanging_up_in_mid_response, listening, silent, speaking_html
from serving import Background, bind_floats, free_config, held_model, wait_until

from pytriton.client import (
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInputError,
    PyTritonClientInvalidRequestError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelNotReadyError,
    PyTritonClientModelUnavailableError,
    PyTritonClientQueueFullError,
    PyTritonClientQueueTimeoutError,
    PyTritonClientTimeoutError,
    PyTritonClientUnreachableError,
    PyTritonClientValueError,
    exceptions,
)
from pytriton.client.utils import get_model_state
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.model_config import DynamicBatcher, QueuePolicy, TimeoutAction
from pytriton.triton import Triton, TritonSecurityConfig

RAISED = set()


def raises(error, failure=None):
    """Marks a test that ends with an exception of this very class, and of an inference with this failure."""
    RAISED.add(failure if error is PyTritonClientInferenceServerError else error)

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **kwargs):
            with pytest.raises(error) as caught:
                test(*args, **kwargs)
            assert type(caught.value) is error
            assert getattr(caught.value, "failure", None) is failure

        return run

    return decorate


refused_with = functools.partial(raises, PyTritonClientInferenceServerError)


def test_every_exception_is_covered():
    classes = {each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)}
    named_otherwise = {PyTritonClientInferenceServerError, Failure.UNREACHABLE}
    assert (classes | set(Failure)) - named_otherwise == RAISED


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.fixture(scope="module")
def triton():
    """A server that requires its token for loading models."""
    security = TritonSecurityConfig(access_token="secret", restricted_endpoints=["model-repository"])
    with Triton(config=free_config(), security_config=security) as triton:
        triton.run()
        yield triton


@pytest.fixture
def client(triton, name, kind, protocol):
    """A client of a model that echoes."""
    bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name) as client:
        yield client


@contextlib.contextmanager
def client_of_peer(kind, protocol, behave):
    with listening(behave) as port, open_client(kind, f"{protocol}://{HOST}:{port}", "floats", **known(kind)) as client:
        yield client


@raises(PyTritonClientError)
def test_shared_memory_is_exhausted(triton, name):
    bind_floats(triton, name, echo)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ModelClient(url_of(triton, "grpc"), name, shared_memory=True) as client:
        client.infer_sample([1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            client.infer_sample(np.zeros(100_000, np.float32))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@every_kind
@raises(PyTritonClientInputError, Failure.REFUSED)
def test_an_input_does_not_match(client):
    client.infer_sample(np.float64([1]))


@every_kind
@raises(PyTritonClientValueError)
def test_inputs_are_missing(client):
    client.infer_sample()


@every_kind
@raises(PyTritonClientInvalidUrlError)
def test_a_url_is_invalid(kind, protocol):
    CLASSES[kind](f"{protocol}:/localhost", "any")


@every_kind
@raises(PyTritonClientTimeoutError)
def test_a_server_does_not_respond(kind, protocol):
    with client_of_peer(kind, protocol, silent) as client:
        client.infer_sample([1], timeout_s=0.1)


@every_kind
@raises(PyTritonClientModelNotReadyError)
def test_a_model_does_not_become_ready(triton, kind, protocol):
    with open_client(kind, url_of(triton, protocol), "no-such-model", init_timeout_s=0.4) as client:
        client.infer_sample([1])


@raises(PyTritonClientModelUnavailableError)
def test_a_model_is_not_in_the_index(triton):
    with tritonclient.http.InferenceServerClient(url_of(triton, "http").removeprefix("http://")) as client:
        get_model_state(client, "no-such-model", headers={"triton-access-token": "secret"})


@every_kind
@raises(PyTritonClientInvalidRequestError, Failure.REFUSED)
def test_a_model_refuses_a_request(triton, name, kind, protocol):
    def refuse(_):
        raise PyTritonInvalidRequestError("no")

    bind_floats(triton, name, refuse, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name) as client:
        client.infer_sample([1])


@every_kind
@raises(PyTritonClientClosedError)
def test_a_client_is_closed(client):
    client.infer_sample([1])
    client.close()
    client.infer_sample([1])


@every_kind
@raises(PyTritonClientModelDoesntSupportBatchingError)
def test_a_model_does_not_support_batching(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind, batching=False))
    with open_client(kind, url_of(triton, protocol), name) as client:
        client.infer_batch([[1]])


@raises(PyTritonClientQueueFullError)
def test_the_queue_of_a_client_is_full(protocol):
    url = f"{protocol}://{HOST}"
    with (
        listening(silent) as port,
        FuturesModelClient(
            f"{url}:{port}", "any", max_workers=1, max_queue_size=1, non_blocking=True, init_timeout_s=0.1
        ) as client,
    ):
        for _ in range(3):
            client.infer_sample([1])


@every_kind
@raises(PyTritonClientUnreachableError, Failure.UNREACHABLE)
def test_no_server_is_running(kind, protocol):
    with open_client(kind, f"{protocol}://{HOST}:1", "floats", **known(kind)) as client:
        client.infer_sample([1])


@every_kind
@refused_with(Failure.BUSY)
def test_the_queue_of_the_server_is_full(triton, name, kind, protocol):
    batcher = DynamicBatcher(default_queue_policy=QueuePolicy(max_queue_size=1))
    _, gate = held_model(triton, name, config=config_for(kind, max_batch_size=1, batcher=batcher))
    with open_client(kind, url_of(triton, protocol), name) as client:
        requested = [Background(lambda: client.infer_sample([1])) for _ in range(8)]
        first = wait_until(lambda: next((each for each in requested if each.ended), None))
        gate.set()
        for each in requested:
            each.finish()
        raise first.error


@every_kind
@raises(PyTritonClientQueueTimeoutError, Failure.REFUSED)
def test_a_request_waits_too_long_in_the_queue_of_the_server(triton, name, kind, protocol):
    policy = QueuePolicy(TimeoutAction.REJECT, default_timeout_microseconds=1)
    batcher = DynamicBatcher(default_queue_policy=policy)
    bind_floats(triton, name, echo, config=config_for(kind, batcher=batcher))
    with open_client(kind, url_of(triton, protocol), name) as client:
        client.infer_sample([1])


@every_kind
@refused_with(Failure.NOT_SERVED)
def test_a_model_was_unloaded(triton, kind, protocol):
    with open_client(kind, url_of(triton, protocol), "floats", **known(kind)) as client:
        client.infer_sample([1])


@every_kind_that_loads
@refused_with(Failure.RESTRICTED)
def test_a_token_is_required(client):
    client.load_model()


@every_kind
@refused_with(Failure.REFUSED)
def test_a_model_fails(triton, name, kind, protocol):
    def fail(requests):
        raise ValueError("no such luck")

    bind_floats(triton, name, fail, config=config_for(kind))
    with open_client(kind, url_of(triton, protocol), name) as client:
        client.infer_sample([1])


@every_kind
@refused_with(Failure.LOST)
def test_a_connection_breaks(kind, protocol):
    with client_of_peer(kind, protocol, hanging_up_in_mid_response) as client:
        client.infer_sample([1])


@every_kind
@refused_with(Failure.MALFORMED)
def test_a_proxy_responds_for_the_server(kind, protocol):
    with client_of_peer(kind, protocol, speaking_html(502)) as client:
        client.infer_sample([1])


# What scripts for nvidia-pytriton catch around such a call.
CAUGHT_ELSEWHERE = {
    "an unknown input": ({"z": np.zeros((1, 2), np.float32)}, PyTritonClientInferenceServerError),
    "another dtype": ({"x": np.zeros((1, 2), np.complex64)}, PyTritonClientInferenceServerError),
    "too many dimensions": ({"x": np.zeros((1, 2, 3), np.float32)}, PyTritonClientInferenceServerError),
    "too large a batch": ({"x": np.zeros((100, 2), np.float32)}, PyTritonClientInferenceServerError),
    "no inputs": ({}, PyTritonClientValueError),
    "parameters that are none": ({"x": np.zeros((1, 2), np.float32), "parameters": 3}, PyTritonClientValueError),
    "headers that are none": ({"x": np.zeros((1, 2), np.float32), "headers": [1]}, PyTritonClientValueError),
}


@pytest.mark.parametrize("what", CAUGHT_ELSEWHERE)
def test_scripts_for_nvidia_pytriton_catch_the_same_exceptions(triton, name, what):
    arguments, error = CAUGHT_ELSEWHERE[what]
    bind_floats(triton, name, echo)
    with ModelClient(url_of(triton, "http"), name) as client:
        with pytest.raises(error):
            client.infer_batch(**arguments)
        with pytest.raises(ValueError, match=r"\."):
            client.infer_batch(**arguments)
