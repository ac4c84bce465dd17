"""The directory of replicas, without Ray around it."""

import asyncio
import dataclasses
import functools

import pytest

pytest.importorskip("ray")

from pytriton.ray.pools import directory as module
from pytriton.ray.pools.directory import Directory, ReplicaEntry, ReplicaFailure
from pytriton.ray.pools.status import PoolStatus

ENTRY = ReplicaEntry(
    id="r1",
    node="0123456789abcdef",
    http="http://10.0.0.1:8000",
    grpc="grpc://10.0.0.1:8001",
    metrics="10.0.0.1:8002",
    models=("Double",),
    is_ready=True,
    load={"queue_ms": 1.25, "pending": 3, "busy": 0.5},
    server_restarts=2,
    pid=7,
)
OTHER = dataclasses.replace(ENTRY, id="r2", http="http://10.0.0.2:8000")


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


async def watched(directory, version=None, timeout_s=0.0):
    version, entries = await directory.watch("pool", version, timeout_s)
    return version, [entry.id for entry in entries]


@in_loop
async def test_watchers_are_notified_at_once_of_added_and_removed_replicas():
    directory = Directory()
    version, entries = await watched(directory)
    assert entries == []
    watch = asyncio.create_task(watched(directory, version, 60.0))
    await directory.publish("pool", ENTRY, "token")
    version, entries = await watch
    assert entries == ["r1"]
    watch = asyncio.create_task(watched(directory, version, 60.0))
    await directory.withdraw("pool", "r1")
    assert (await watch)[1] == []


@in_loop
async def test_a_renewed_entry_does_not_notify_watchers():
    directory = Directory()
    await directory.publish("pool", ENTRY, "token")
    version, _ = await watched(directory)
    await directory.publish("pool", dataclasses.replace(ENTRY, load={"pending": 9}), "token")
    assert await watched(directory, version) == (version, ["r1"])
    assert (await directory.entries("pool"))[0].load == {"pending": 9}


@in_loop
async def test_replicas_that_are_not_ready_are_listed_but_get_no_requests():
    directory = Directory()
    await directory.publish("pool", ENTRY, "token")
    version, _ = await watched(directory)
    await directory.publish("pool", dataclasses.replace(ENTRY, is_ready=False), "token")
    assert (await watched(directory, version, 60.0))[1] == []
    assert [entry.id for entry in await directory.entries("pool")] == ["r1"]


@in_loop
async def test_an_entry_that_is_not_renewed_expires(monkeypatch):
    directory = Directory()
    await directory.publish("pool", ENTRY, "token")
    await directory.publish("pool", OTHER, "token")
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 4)
    await directory.publish("pool", OTHER, "token")
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 6)
    assert (await watched(directory))[1] == ["r2"]
    assert await directory.pools() == ["pool"]
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 60)
    assert await directory.pools() == []


@in_loop
async def test_a_restarted_directory_has_another_version():
    first, second = Directory(), Directory()
    version, _ = await watched(first)
    assert (await watched(second, version, 60.0))[0] != version


@in_loop
async def test_replicas_pass_the_token_of_their_pool_to_a_new_directory():
    directory = Directory()
    token = await directory.token("pool")
    assert token == await directory.token("pool") != await directory.token("other")
    await directory.publish("pool", ENTRY, "known before")
    assert await directory.token("pool") == "known before"


@in_loop
async def test_the_last_failures_are_kept_and_counted():
    directory = Directory()
    for number in range(12):
        await directory.fail("pool", ReplicaFailure(f"r{number}", "node", "ValueError: no", "Traceback…"))
    failures = await directory.failures("pool")
    assert [failure.number for failure in failures] == list(range(3, 13))
    assert failures[-1].id == "r11"


def test_a_status_is_printed_as_a_table():
    failure = ReplicaFailure("r3", "fedcba9876543210", "ValueError: no weights", "Traceback…")
    status = PoolStatus(
        "double", "DEPLOYING", "A replica failed. Error:\nTraceback…", {"RUNNING": 1}, [ENTRY], [failure]
    )
    header, message, failed, columns, row = str(status).splitlines()
    assert header == "Pool double: DEPLOYING (1 RUNNING)"
    assert message == "  A replica failed."
    assert failed == "  Replica r3 on node fedcba98 failed: ValueError: no weights"
    assert columns.split()[:3] == ["REPLICA", "NODE", "READY"]
    assert row.split() == [
        "r1", "01234567", "yes", ENTRY.http, ENTRY.grpc, ENTRY.metrics, "Double", "3", "1.2", "0.50", "2",
    ]  # fmt: skip
