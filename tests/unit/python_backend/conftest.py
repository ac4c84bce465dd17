"""Fixtures: repository models served by a worker over real sockets, without a server."""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
import textwrap

import pytest

# Test modules are imported by their paths; what they share is found here.
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "proxy"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from declared import config_of
from wiring import TIMEOUT_S, Instance, Wire

from pytriton.proxy.wire.control import Command, CommandMessage
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import Worker
from pytriton.python_backend import loader

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clean_interpreter(tmp_path):
    """What a worker process keeps for itself is forgotten: here, it is one process for all tests."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("triton_python_backend_utils", None)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def repository(tmp_path):
    """Writes models; returns the order to load one."""

    def write(source, config=None, *, version=1, filename="model.py", kind="CPU", device="0", **files):
        folder = tmp_path / f"m{next(_numbers)}"
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / filename).write_text(textwrap.dedent(source))
        for name, content in files.items():
            (folder / str(version) / f"{name}.py").write_text(textwrap.dedent(content))
        return CommandMessage(
            Command.LOAD,
            folder=str(tmp_path),
            model="m",
            version=version,
            instance="m_0_0",
            config=json.dumps(config_of() if config is None else config),
            repository=str(folder),
            instance_kind=kind,
            device_id=device,
        )

    return write


@pytest.fixture
def serve(repository):
    """Starts workers for models, each with one instance connected."""
    started = []

    def serve(source, config=None, **files):
        loaded = loader.load(repository(source, config, **files))
        connection = Wire.of(loaded.signature)
        loop = EventLoop("pytriton-loop-m")
        worker = Worker(loaded.infer_func, loaded.signature, None, loop)
        instance = Instance(connection, worker)
        started.append((worker, instance, loop, connection))
        return instance

    yield serve
    for worker, instance, loop, connection in started:
        instance.channel.close()
        worker.close(TIMEOUT_S)
        loop.stop()
        connection.close()
