"""Errors of a server's report."""

from __future__ import annotations

import types

import pytest

from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError
from pytriton.server_report import ServerReport


def statistics(*_):
    raise TimeoutError("timed out")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (None, "The server is not running: call run() or serve() first."),
        (
            types.SimpleNamespace(control=types.SimpleNamespace(statistics=statistics)),
            "The server does not respond: timed out.",
        ),
    ],
    ids=["none", "hangs"],
)
def test_a_server_that_does_not_run_and_one_that_does_not_respond(server, message):
    with pytest.raises(PyTritonClientInferenceServerError) as caught:
        ServerReport([], lambda: server).statistics()
    assert (caught.value.message, caught.value.failure) == (message, Failure.UNREACHABLE)
