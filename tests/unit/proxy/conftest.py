"""Fixtures: connections for models, without a server."""

from __future__ import annotations

import os
import pathlib
import sys

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.transport import adaptive_spin
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import Worker

# Test modules are imported by their paths; what they share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from executors import OUTPUTS, Direct, threads
from wiring import TIMEOUT_S, Instance, Wire


@pytest.fixture
def two_processors(monkeypatch):
    """Spinning is allowed, whatever the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(adaptive_spin, "_cpu_limit", lambda: None)
    monkeypatch.delenv("PYTRITON_SPIN", raising=False)


@pytest.fixture
def wire():
    """Makes connections for models."""
    made = []

    def make(inputs=None, outputs=None, **arguments):
        floats = {"shape": (-1,), "dtype": np.float32}
        inputs = inputs or [Tensor(name="x", **floats), Tensor(name="w", **floats, optional=True)]
        outputs = outputs or [Tensor(name="y", **floats), Tensor(name="z", **floats)]
        made.append(Wire(inputs, outputs, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def plain_wire(wire):
    """A connection for a model without batching."""
    return wire(config=ModelConfig(batching=False))


@pytest.fixture
def serve(wire):
    """Starts workers for inference callables, each with one instance connected."""
    started = []

    def serve(
        infer_func,
        on_unrecoverable=None,
        *,
        decoupled=True,
        outputs=OUTPUTS,
        strict=False,
        has_doorbell=False,
        **config,
    ):
        connection = wire(outputs=outputs, config=ModelConfig(decoupled=decoupled, **config), strict=strict)
        loop = EventLoop("pytriton-loop-m")
        worker = Worker(infer_func, connection.signature, on_unrecoverable, loop)
        instance = Instance(connection, worker, has_doorbell)
        started.append((worker, instance, loop))
        return worker, instance

    yield serve
    for worker, instance, loop in started:
        instance.channel.close()
        worker.close(TIMEOUT_S)
        loop.stop()
        for thread in threads():
            thread.join(TIMEOUT_S)
    assert threads() == []


@pytest.fixture
def direct(wire):
    """Makes executors, each with one instance connected."""
    made = []

    def direct(infer_func, **arguments):
        connection = wire(outputs=OUTPUTS, config=ModelConfig(decoupled=True))
        made.append(Direct(infer_func, connection.signature, **arguments))
        return made[-1], Instance(connection, made[-1])

    yield direct
    for each in made:
        each.executor.close()
        assert each.closed.wait(TIMEOUT_S)
        each.loop.stop()
