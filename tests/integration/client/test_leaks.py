"""Clients that are created and closed many times leave nothing behind."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
import threading

import pytest
from client_kinds import open_client
from peers import listening, speaking_html
from serving import HOST, bind_floats, wait_until

from pytriton.client import ModelClient, PyTritonClientError


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def resources():
    gc.collect()
    return tuple(len(list(pathlib.Path("/proc/self", each).iterdir())) for each in ("fd", "task"))


def settles(before):
    """Waits until there is not much more than before."""

    def few_more():
        return all(count <= earlier + 4 for earlier, count in zip(before, resources(), strict=True))

    wait_until(few_more, what=f"that there are few more than {before}")


def test_clients_created_and_closed_again_and_again(triton, name, kind, url):
    bind_floats(triton, name, echo)

    def open_and_close():
        with open_client(kind, url, name) as client:
            client.infer_sample([1])

    open_and_close()
    open_and_close()
    before = resources()
    for _ in range(20):
        open_and_close()
    settles(before)


@pytest.mark.parametrize("closed", [True, False])
def test_short_lived_threads_with_their_own_clients(triton, name, url, closed):
    bind_floats(triton, name, echo)

    def send_request():
        client = ModelClient(url, name)
        client.infer_sample([1])
        if closed:
            client.close()

    _in_threads(send_request, 3)
    before = resources()
    _in_threads(send_request, 20)
    settles(before)


def test_short_lived_threads_with_a_shared_client(triton, name, url):
    bind_floats(triton, name, echo)
    with ModelClient(url.replace(HOST, "localhost"), name) as client:  # a name, which has to be looked up
        _in_threads(lambda: client.infer_sample([1]), 3)
        before = resources()
        _in_threads(lambda: client.infer_sample([1]), 20)
        settles(before)


def test_failures(kind, protocol):
    with (
        listening(speaking_html(200)) as port,
        open_client(kind, f"{protocol}://{HOST}:{port}", "any", ensure_model_is_ready=False) as client,
    ):

        def fail():
            with pytest.raises(PyTritonClientError):
                client.infer_sample([1])

        for _ in range(3):
            fail()
        before = resources()
        for _ in range(20):
            fail()
        settles(before)


def test_a_program_that_does_not_close_its_clients_exits(triton, name, url):
    bind_floats(triton, name, echo)
    script = f"""
import numpy as np
from pytriton.client import FuturesModelClient, ModelClient
client = ModelClient({url!r}, {name!r}, shared_memory=True)
large = client.infer_sample(np.ones(100_000, np.float32))
futures = FuturesModelClient({url!r}, {name!r})
print(futures.infer_sample([1]).result()["y"])
pending = futures.infer_sample([2])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.]\n", "")


def _in_threads(function, count):
    for _ in range(count):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
