"""Importing the clients is fast: transports are imported on first use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import pytriton.client

SCRIPT = """
import json, sys, time
import numpy
started = time.perf_counter()
{statement}
print(json.dumps([time.perf_counter() - started, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""
HEAVY = {"tritonclient", "grpc", "google", "gevent", "geventhttpclient", "aiohttp", "httptools", "tqdm", "zmq"}


def imported_by(statement):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import pytriton.client",
        "from pytriton.client import *",
        "import pytriton.client.utils",
        "from pytriton.client import ModelClient; ModelClient('grpc://localhost', 'any')",
        "from pytriton.client import ModelClient; ModelClient('localhost', 'any')",
    ],
)
def test_nothing_heavy_is_imported(statement):
    _, modules = imported_by(statement)
    assert not HEAVY & set(modules)


def test_it_takes_little_time():
    assert min(imported_by("import pytriton.client")[0] for _ in range(3)) < 0.3


def test_all_names_exist():
    for name in pytriton.client.__all__:
        assert getattr(pytriton.client, name).__name__ == name
        assert name in dir(pytriton.client)
    with pytest.raises(AttributeError, match="has no attribute 'NoClient'"):
        pytriton.client.NoClient  # noqa: B018


@pytest.mark.parametrize("name", ["asyncio_utils", "auth", "client", "exceptions", "utils", "warnings"])
def test_modules_are_attributes_without_an_import(name):
    script = f"import pytriton.client; print(pytriton.client.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"pytriton.client.{name}\n"
