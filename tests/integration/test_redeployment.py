"""Bound models that are undeployed and redeployed: their callables and processes stay open meanwhile."""

from __future__ import annotations

import logging
import sys
import time

import cloudpickle
import pytest
from processes import Multiply, bind_pid, pid_of_response, process_of
from serving import bind_floats, client_of, running_triton, send_floats

from pytriton.process import ProcessInstance
from pytriton.server.state import ServerState

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WAIT_S = 10


@pytest.fixture
def triton():
    with running_triton(restart=False) as triton:
        triton.run()
        yield triton


def undeploy(triton):
    triton._session.models.undeploy(time.monotonic() + WAIT_S, unload=True)


def deploy(triton):
    triton._session._deployer.complete(triton._session.server, triton._session.registry)


def test_a_redeployed_function_is_served_again(triton):
    bind_floats(triton, "double", lambda requests: [{"y": request["x"] * 2} for request in requests])
    assert send_floats(triton, "double", [3]) == [6]

    undeploy(triton)
    assert isinstance(send_floats(triton, "double", [3]), str), "the server has the model no longer"

    deploy(triton)
    assert send_floats(triton, "double", [4]) == [8]


def test_a_process_outlives_an_undeployment(triton, caplog):
    caplog.set_level(logging.WARNING)
    bind_pid(triton, "process", ProcessInstance(Multiply))
    before = process_of("process").pid

    undeploy(triton)
    assert process_of("process").pid == before

    deploy(triton)
    with client_of(triton) as client:
        assert pid_of_response(client, "process") == before
    assert not caplog.messages


def test_the_state_follows_the_server(triton):
    server = triton._session.server
    assert server.state is ServerState.READY

    server.process.stop(0)
    assert server.state is ServerState.FAILED

    triton.stop()
    assert server.state is ServerState.STOPPED
