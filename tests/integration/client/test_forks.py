"""Clients in forked processes; in scripts, because a fork of the tests would copy too much."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from client_kinds import CLASSES, config_for, every_kind, url_of
from serving import bind_floats

HEAD = """
import asyncio, json, os, sys
import numpy as np
import tritonclient.http
from pytriton.client import *

http_url, url, name, kind = sys.argv[1:]

def regions():
    with tritonclient.http.InferenceServerClient(http_url) as client:
        return sorted(region["name"] for region in client.get_system_shared_memory_status())

def forked(run):
    child = os.fork()
    if child == 0:
        sys.exit(run())  # as a program exits, with all its cleanups
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BOTH_ASK = """
client = ModelClient(url, name, shared_memory=kind == "shared memory")
rows = np.zeros((1, 100_000), np.float32)
client.infer_batch(rows)

def wrong(who):
    count = 0
    for number in range(100):
        rows[0, :2] = who, number
        count += not np.array_equal(client.infer_batch(rows)["y"], rows)
    return count

child = os.fork()
if child == 0:
    sys.exit(wrong(2))
print(json.dumps([wrong(1), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
"""

CHILD_ENDS = """
client = ModelClient(url, name, shared_memory=True)
kept = [client.infer_sample(np.ones(100_000, np.float32)) for _ in range(3)]
before = regions()
status = forked(lambda: 0)
print(json.dumps([status, len(before), regions() == before, float(client.infer_sample([2])["y"][0])]))
"""

FORKED_WHILE_THREADS_ASK = """
import threading

client, over, wrong = ModelClient(url, name), threading.Event(), []

def ask(number):
    rows = np.full((1, 20_000), number, np.float32)
    if not np.array_equal(client.infer_batch(rows)["y"], rows):
        wrong.append(number)

def ask_on(who):
    number = 0
    while not over.is_set():
        number += 1
        ask(1000 * who + number)

def ask_in_child():
    for number in range(20):
        ask(-number)
    thread = threading.Thread(target=ask, args=[7])
    thread.start()
    thread.join()
    return len(wrong)

threads = [threading.Thread(target=ask_on, args=[who]) for who in range(3)]
for thread in threads:
    thread.start()
ask(1)
ended = [forked(ask_in_child) for _ in range(3)]
over.set()
for thread in threads:
    thread.join()
print(json.dumps([ended, wrong]))
"""

CHILD_FOLLOWS_ADDRESSES = """
urls = [url]
client = ModelClient(lambda: urls, name, shared_memory=True)
large = np.ones(100_000, np.float32)

def ask():
    return float(client.infer_sample(large)["y"][0])

def ask_in_child():
    first = ask()
    urls[:] = [http_url]
    return int(first + ask())

ask()
before = regions()
print(json.dumps([forked(ask_in_child), ask(), set(before) <= set(regions())]))
"""

CHILD_USES_ITS_PARENTS = """
client_class = getattr(sys.modules["pytriton.client"], kind)
client = client_class(url, name)

def use(client):
    returned = client.infer_sample([1])
    if isinstance(returned, dict):
        return returned["y"]
    if hasattr(returned, "result"):
        return returned.result(10)["y"]
    # Streams are read to their end: gRPC may crash the child of a fork while it cancels one in another thread.
    if hasattr(returned, "__next__"):
        return [response["y"] for response in returned][0]
    async def ask():
        if hasattr(returned, "__anext__"):
            return [response["y"] async for response in returned][0]
        return (await returned)["y"]
    return asyncio.run(ask())

def use_in_child():
    try:
        use(client)
    except PyTritonClientError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
    return 0

use(client)
print(json.dumps([forked(use_in_child), float(use(client)[0])]))
"""


def run(script, triton, protocol, name, kind=""):
    """Runs a script against a server; returns what it prints, a value in each line."""
    arguments = [url_of(triton, "http").removeprefix("http://"), url_of(triton, protocol), name, kind]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.mark.parametrize("memory", ["shared memory", "the socket"])
def test_parent_and_child_each_get_their_own_responses(triton, name, protocol, memory):
    bind_floats(triton, name, echo)
    assert run(BOTH_ASK, triton, protocol, name, memory) == [[0, 0]]


def test_the_exit_of_a_child_keeps_the_shared_memory_of_its_parent(triton, name, protocol):
    bind_floats(triton, name, echo)
    ((status, count, is_same, response),) = run(CHILD_ENDS, triton, protocol, name)
    assert (status, is_same, response) == (0, True, 2)
    assert count >= 3


def test_threads_send_requests_while_another_one_forks(triton, name, protocol):
    bind_floats(triton, name, echo)
    assert run(FORKED_WHILE_THREADS_ASK, triton, protocol, name) == [[[0, 0, 0], []]]


def test_a_child_follows_its_own_addresses(triton, name):
    bind_floats(triton, name, echo)
    assert run(CHILD_FOLLOWS_ADDRESSES, triton, "grpc", name) == [[2, 1, True]]


@every_kind
def test_using_a_client_of_the_parent_in_a_child_is_explained(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    *errors, ended = run(CHILD_USES_ITS_PARENTS, triton, protocol, name, CLASSES[kind].__name__)
    assert ended == [0, 1]
    if kind == "blocking":
        assert errors == []
    else:
        (error,) = errors
        assert error.startswith(f"PyTritonClientClosedError: The client of model '{name}' was made in the process that")


def test_a_child_can_create_its_own_client(triton, name):
    bind_floats(triton, name, echo)
    script = """
def ask(url):
    with FuturesModelClient(url, name) as client:
        return int(client.infer_sample([1]).result(10)["y"][0]) - 1

def ask_over_grpc():
    try:
        return ask(url)
    except PyTritonClientError as error:
        print(json.dumps(str(error)), flush=True)
        return 7

ask(http_url), ask(url)
print(json.dumps([forked(lambda: ask(http_url)), forked(ask_over_grpc)]))
"""
    error, ended = run(script, triton, "grpc", name)
    assert error.startswith("gRPC was used for asyncio, futures or streams in the process that this one was forked")
    assert ended == [0, 7]
