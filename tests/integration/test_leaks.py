"""Many requests of mixed sizes do not increase memory, /dev/shm or file descriptors."""

from __future__ import annotations

import gc

import numpy as np
import psutil
import pytest
from footprint import MIB, Footprint, assert_same, settled
from serving import Client, bind_floats, running_triton, wait_until

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

BURST_MIB = 64


@pytest.fixture
def triton():
    """A server for each test."""
    with running_triton() as triton:
        bind_floats(triton, "floats", batch(lambda x: [x + 1]), config=ModelConfig(max_batch_size=4))
        triton.bind(
            "texts",
            lambda requests: requests,
            inputs=[Tensor(name="x", shape=(-1,), dtype=bytes)],
            outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)],
        )
        bind_floats(triton, "fails", lambda requests: None)
        triton.run()
        yield triton


def send_mixed(clients, count, seed=0):
    """Sends requests of up to 1 MiB, most of them small, in turn to each client and each model."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        client = clients[number % len(clients)]
        size = int(2 ** rng.uniform(0, 18))
        if number % 10 == 8:
            sent = np.array([[b"x" * size, b""]], object)
            assert client.infer("texts", {"x": sent})["y"].tolist() == sent.tolist()
        elif number % 10 == 9:
            with pytest.raises(Exception, match="returned None"):
                client.infer("fails", {"x": np.zeros((1, size), np.float32)})
        else:
            received = client.infer("floats", {"x": np.full((1, size), number, np.float32)})["y"]
            assert received[0, 0] == received[0, -1] == number + 1


def check_many(triton, count, warm_up=400):
    clients = [Client("http", triton), Client("grpc", triton)]
    try:
        send_mixed(clients, warm_up, seed=1)  # every pool and allocator has seen every size
        before = Footprint(triton)
        send_mixed(clients, count)
        assert_same(before, settled(triton, before))
    finally:
        for client in clients:
            client.close()


def test_two_thousand_requests_of_mixed_sizes_leave_nothing_behind(triton):
    check_many(triton, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_requests_of_mixed_sizes_leave_nothing_behind(triton):
    check_many(triton, 10_000, warm_up=4_000)


@pytest.mark.slow
def test_memory_shrinks_back_after_a_burst_of_big_requests(triton):
    client = Client("http", triton)  # over gRPC the server itself keeps requests and responses for reuse
    try:
        send_mixed([client], 50)
        before = Footprint(triton)
        big = np.zeros((1, BURST_MIB * MIB // 4), np.float32)
        for _ in range(3):
            client.infer("floats", {"x": big})
        burst = before.growth(Footprint(triton))
        assert max(burst.values()) > BURST_MIB

        del big
        assert_same(before, settled(triton, before))
    finally:
        client.close()


@pytest.mark.slow
def test_kept_inputs_hold_their_memory_until_they_are_dropped(triton):
    kept = []

    def keep(requests):
        kept.extend(request["x"] for request in requests)
        return [[request["x"][:, :1]] for request in requests]

    bind_floats(triton, "keep", keep)
    client = Client("http", triton)
    try:
        client.infer("keep", {"x": np.zeros((1, 1), np.float32)})
        before = Footprint(triton)
        for number in range(16):
            client.infer("keep", {"x": np.full((1, 4 * MIB // 4), number, np.float32)})
        assert before.growth(Footprint(triton))["server"] > 16 * 4 * 0.9
        assert [array[0, -1] for array in kept[1:]] == list(range(16))

        kept.clear()
        assert_same(before, settled(triton, before))
    finally:
        client.close()


def test_repeated_binding_leaves_nothing_behind(triton):
    client = Client("http", triton)

    def rebind(count):
        for number in range(count):
            bind_floats(triton, "again", batch(lambda x, number=number: [x + number]))
            assert client.infer("again", {"x": np.zeros((1, 9), np.float32)})["y"][0, 0] == number

    try:
        rebind(5)
        before = Footprint(triton)
        rebind(25)
        assert_same(before, settled(triton, before))
    finally:
        client.close()


def test_servers_that_were_stopped_leave_nothing_in_the_users_process():
    def run_once():
        with running_triton() as triton:
            bind_floats(triton, "floats", batch(lambda x: [x]))
            triton.run()

    def files():
        gc.collect()
        return psutil.Process().num_fds()

    run_once()
    process = psutil.Process()
    before, threads = files(), process.num_threads()
    for _ in range(3):
        run_once()

    wait_until(lambda: files() <= before and process.num_threads() <= threads)
