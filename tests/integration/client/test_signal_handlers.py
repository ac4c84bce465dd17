"""Exceptions that the program's handlers of signals raise while a client waits, as timeouts of a program's own do."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest
from peers import HOST, powerless
from serving import Background, held_model, wait_until

from pytriton.client import ModelClient

ERRORS = [OSError("mine"), ConnectionResetError("mine"), TimeoutError("mine"), ValueError("mine"), KeyError("mine")]


class Handler:
    """A handler that raises an exception, as a function, a method, or an object."""

    def __init__(self, error):
        self._error = error

    def handle(self, number, frame):
        raise self._error

    def __call__(self, number, frame):
        raise self._error


@pytest.fixture
def handle():
    """Sets the handler of SIGUSR1 for a test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["function", "method", "object"])
def test_the_exception_ends_the_request_unchanged_and_nothing_is_sent_again(triton, name, url, handle, error, kind):
    handler = Handler(error)
    handle({"function": lambda *_: handler.handle(*_), "method": handler.handle, "object": handler}[kind])
    entered, gate = held_model(triton, name)
    with ModelClient(url, name) as client:
        client.model_config  # noqa: B018

        def interrupt():
            assert entered.wait(10)
            os.kill(os.getpid(), signal.SIGUSR1)

        interrupting = Background(interrupt)
        with pytest.raises(type(error)) as caught:
            client.infer_sample(np.float32([1]))
        interrupting.finish()
        assert caught.value is error
        gate.set()
        assert client.infer_sample(np.float32([2]))["y"] == [2]


def test_an_exception_while_connecting(handle):
    handle(Handler(OSError("mine")))
    with powerless() as port, ModelClient(f"{HOST}:{port}", "any", lazy_init=True, init_timeout_s=60) as client:

        def interrupt():
            wait_until(lambda: any(each.raddr and each.raddr.port == port for each in connections() if is_new(each)))
            os.kill(os.getpid(), signal.SIGUSR1)

        interrupting = Background(interrupt)
        with pytest.raises(OSError, match="mine"):
            client.wait_for_model(60)
        interrupting.finish()


def connections():
    return psutil.Process().net_connections("tcp")


def is_new(connection):
    """Whether a connection is being made."""
    return connection.status == psutil.CONN_SYN_SENT
