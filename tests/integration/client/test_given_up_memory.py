"""Shared memory of requests that timed out."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from client_kinds import open_client
from serving import bind_floats, client_of, held_model, wait_until

from pytriton.client import AsyncioModelClient, ModelClient, PyTritonClientTimeoutError
from pytriton.client.core import shared_memory
from pytriton.client.core.sansio import run

LARGE = np.ones(200_000, np.float32)


def regions(triton):
    """The regions of clients that the server knows."""
    with client_of(triton) as client:
        return {region["name"] for region in client.raw.get_system_shared_memory_status()}


@pytest.fixture
def impatient(monkeypatch):
    """What was given up is to be had back at once."""
    monkeypatch.setattr(shared_memory, "ABANDONED_S", 0)


def given_up(triton, client, entered):
    """Has a request time out in the model; returns the regions that it leaves there."""
    before = regions(triton)
    with pytest.raises(PyTritonClientTimeoutError):
        client.infer_sample(LARGE, timeout_s=0.3)
    assert entered.wait(10)
    left = regions(triton) - before
    assert len(left) == 1
    return left


def test_it_is_reclaimed_when_the_server_has_finished_with_it(triton, name, kind, url, impatient):
    entered, gate = held_model(triton, name)
    with open_client(kind, url, name, shared_memory=True) as client:
        left = given_up(triton, client, entered)
        gate.set()
        kept = []
        wait_until(lambda: kept.append(client.infer_sample(LARGE)) or not left & regions(triton))


def test_it_is_not_reclaimed_while_the_server_is_using_it(triton, name, url, impatient):
    entered, gate = held_model(triton, name)
    bind_floats(triton, f"{name}_other", lambda requests: [{"y": request["x"]} for request in requests])
    with ModelClient(url, name, shared_memory=True) as client:
        left = given_up(triton, client, entered)
        pool = client._session.servers[0].regions
        with ModelClient(url, f"{name}_other", shared_memory=True) as other:
            other._session.servers[0].regions = pool
            kept = [other.infer_sample(LARGE) for _ in range(3)]
            assert left <= regions(triton)
            del kept
        gate.set()


def test_closing_waits_briefly_for_it(triton, name, kind, url):
    before = regions(triton)
    entered, gate = held_model(triton, name)
    with open_client(kind, url, name, shared_memory=True) as client:
        given_up(triton, client, entered)
        threading.Timer(0.2, gate.set).start()
        client.close()
        assert regions(triton) == before


def test_closing_unregisters_the_rest_while_some_is_in_use(triton, name, url, monkeypatch):
    monkeypatch.setattr(shared_memory, "_CLOSE_TIMEOUT_S", 0.1)
    before = regions(triton)
    entered, gate = held_model(triton, name)
    with ModelClient(url, name, shared_memory=True) as client:
        (server,) = client._session.servers
        for size in (1 << 17, 1 << 19, 1 << 21):
            run(server.regions.lend(server, size, 10))
        assert len(regions(triton) - before) == 3
        left = given_up(triton, client, entered)
        client.close()
        assert regions(triton) - before == left
    gate.set()


def test_a_cancelled_task_gives_it_up(triton, name, url):
    before = regions(triton)
    entered, gate = held_model(triton, name)

    async def send_request():
        async with AsyncioModelClient(url, name, shared_memory=True) as client:
            task = asyncio.ensure_future(client.infer_sample(LARGE))
            await asyncio.to_thread(entered.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (server,) = client._session.servers
            assert not server.regions._free
            assert not server.regions._returned
            gate.set()
            assert (await client.infer_sample(2 * LARGE))["y"][0] == 2

    asyncio.run(send_request())
    assert regions(triton) == before
