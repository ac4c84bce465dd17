"""The futures client: its queue, and closing in order."""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading

import numpy as np
import pytest
from serving import Background, at_once, bind_floats, held_model, wait_until

from pytriton.client import (
    FuturesModelClient,
    PyTritonClientClosedError,
    PyTritonClientModelUnavailableError,
    PyTritonClientQueueFullError,
    PyTritonClientValueError,
)
from pytriton.model_config import ModelConfig


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def threads_of_clients():
    return [thread for thread in threading.enumerate() if thread.name == "pytriton-futures"]


def is_waiting(thread):
    """Whether it is held up by a lock or the like."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def test_futures_return_responses_in_any_order(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name) as client:
        futures = {client.infer_sample([number]): number for number in range(300)}
        for future in concurrent.futures.as_completed(futures, timeout=60):
            assert future.result()["y"] == [futures[future]]


def test_futures_raise_errors(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name) as client:
        wrong = client.infer_sample(np.float64([1]))
        right = client.infer_sample([1])
        assert isinstance(wrong.exception(30), PyTritonClientValueError)
        assert right.result(30)["y"] == [1]
    with FuturesModelClient(url, "no-such-model", init_timeout_s=0.4) as client:
        assert isinstance(client.infer_sample([1]).exception(30), PyTritonClientModelUnavailableError)
        assert isinstance(client.model_config().exception(30), PyTritonClientModelUnavailableError)
        assert isinstance(client.wait_for_model(0.4).exception(30), PyTritonClientModelUnavailableError)


def test_a_full_queue_refuses_non_blocking_requests(triton, name, url):
    entered, gate = held_model(triton, name)
    with FuturesModelClient(url, name, max_workers=1, max_queue_size=2, non_blocking=True) as client:
        futures = [client.infer_sample([number]) for number in range(3)]
        assert entered.wait(30)
        with pytest.raises(PyTritonClientQueueFullError, match="1 in flight and 2 in the queue"):
            client.infer_sample([4])
        gate.set()
        assert [future.result(30)["y"][0] for future in futures] == [0, 1, 2]
        assert client.infer_sample([5]).result(30)["y"] == [5]


def test_a_full_queue_blocks_other_requests(triton, name, url):
    entered, gate = held_model(triton, name)
    with FuturesModelClient(url, name, max_workers=1, max_queue_size=1) as client:
        client.infer_sample([0])
        client.infer_sample([1])
        assert entered.wait(30)
        third = Background(lambda: client.infer_sample([2]))
        wait_until(lambda: is_waiting(third))
        gate.set()
        assert third.finish().result.result(30)["y"] == [2]


def test_waiting_for_room_times_out(triton, name, url):
    _, gate = held_model(triton, name)
    with FuturesModelClient(url, name, max_workers=1, max_queue_size=1, inference_timeout_s=0.3) as client:
        waiting = [client.infer_sample([number], timeout_s=30) for number in range(2)]
        with pytest.raises(PyTritonClientQueueFullError, match=r"within 0\.3 s"):
            client.infer_sample([2])
        gate.set()
        assert [future.result(30)["y"][0] for future in waiting] == [0, 1]


def test_a_callback_does_not_wait_for_a_full_queue(triton, name, url):
    entered, gate = held_model(triton, name)
    errors = []

    def send_again(_):
        try:
            for _ in range(3):
                client.infer_sample([9])
        except PyTritonClientQueueFullError as error:
            errors.append(error)

    with FuturesModelClient(url, name, max_workers=1, max_queue_size=1) as client:
        first = client.infer_sample([0])
        assert entered.wait(30)
        first.add_done_callback(send_again)
        gate.set()
        first.result(30)
        wait_until(lambda: errors)


def test_many_threads_share_a_client(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name, max_workers=8, max_queue_size=4) as client:
        responses = at_once(16, lambda number: [client.infer_sample([number]).result(60)["y"][0] for _ in range(10)])
    assert responses == [[number] * 10 for number in range(16)]


def test_no_more_requests_are_in_flight_than_there_are_workers(triton, name, url):
    in_flight, most = [], []

    def count(requests):
        in_flight.extend(requests)
        most.append(len(requests))
        return echo(requests)

    bind_floats(triton, name, count, config=ModelConfig(max_batch_size=64))
    with FuturesModelClient(url, name, max_workers=3) as client:
        concurrent.futures.wait([client.infer_sample([number]) for number in range(100)], 60)
    assert len(in_flight) == 100
    assert max(most) <= 3


def test_closing_waits_for_all_accepted_requests(triton, name, url):
    entered, gate = held_model(triton, name)
    client = FuturesModelClient(url, name, max_workers=1)
    futures = [client.infer_sample([number]) for number in range(5)]
    assert entered.wait(30)
    closing = Background(client.close)
    wait_until(lambda: client._closed)
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample([9])
    assert closing.is_alive()
    gate.set()
    closing.finish()
    assert [future.result(0)["y"][0] for future in futures] == list(range(5))


def test_closing_without_waiting_cancels_queued_requests(triton, name, url):
    entered, gate = held_model(triton, name)
    client = FuturesModelClient(url, name, max_workers=1)
    futures = [client.infer_sample([number]) for number in range(3)]
    assert entered.wait(30)
    client.close(wait=False)
    assert not futures[0].done()
    gate.set()
    assert futures[0].result(30)["y"] == [0]
    for future in futures[1:]:
        assert isinstance(future.exception(30), PyTritonClientClosedError)
    wait_until(lambda: not threads_of_clients())


def test_cancelling_a_future_cancels_the_request(triton, name, url):
    entered, gate = held_model(triton, name)
    with FuturesModelClient(url, name, max_workers=1) as client:
        first, second, third = (client.infer_sample([number]) for number in range(3))
        assert entered.wait(30)
        assert second.cancel()
        gate.set()
        assert first.result(30)["y"] == [0]
        assert third.result(30)["y"] == [2]
        assert second.cancelled()


def test_every_finished_request_frees_its_place_in_the_queue(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name, max_workers=1, max_queue_size=1, non_blocking=True) as client:
        for number in range(30):
            future = client.infer_sample([number] if number % 3 else ["wrong"])
            if number % 3 == 1:
                future.cancel()
            concurrent.futures.wait([future], 30)
            wait_until(lambda: client._room._value == 2)


def test_the_thread_of_a_dropped_client_ends(triton, name, url):
    bind_floats(triton, name, echo)
    client = FuturesModelClient(url, name)
    client.infer_sample([1]).result(30)
    assert threads_of_clients()
    del client
    gc.collect()
    wait_until(lambda: not threads_of_clients())


def test_configuration_and_waiting_return_futures(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name) as client:
        assert client.wait_for_model(10).result(30) is None
        assert client.model_config().result(30).model_name == name


def test_closing_without_waiting_completes_started_requests(triton, name, url):
    """Also what was submitted at the last moment, and has not been sent yet."""
    bind_floats(triton, name, echo)
    for number in range(10):
        client = FuturesModelClient(url, name, max_workers=2)
        assert client.infer_sample([1]).result(30)["y"] == [1]
        futures = [client.infer_sample([number]), client.infer_sample([number])]
        client.close(wait=False)
        assert [future.result(30)["y"][0] for future in futures] == [number, number]


def test_the_first_request_is_sent_even_if_the_client_is_closed_at_once(triton, name, url):
    bind_floats(triton, name, echo)
    client = FuturesModelClient(url, name)
    future = client.infer_sample([1])
    client.close(wait=False)
    assert future.result(30)["y"] == [1]


def test_the_configuration_can_be_read_when_the_client_is_closed(triton, name, url):
    bind_floats(triton, name, echo)
    with FuturesModelClient(url, name) as client:
        config = client.model_config().result(30)
    assert client.model_config().result(0) is config
    with FuturesModelClient(url, name) as unused:
        pass
    with pytest.raises(PyTritonClientClosedError):
        unused.model_config()


def test_sizes_have_defaults(triton, name, url):
    entered, gate = held_model(triton, name)
    with FuturesModelClient(url, name, max_workers=None, max_queue_size=None, non_blocking=True) as client:
        futures = [client.infer_sample([number]) for number in range(256)]
        assert entered.wait(30)
        with pytest.raises(PyTritonClientQueueFullError, match="128 in flight and 128 in the queue"):
            client.infer_sample([0])
        gate.set()
        concurrent.futures.wait(futures, 60)


def test_sizes_and_timeouts_may_be_numbers_of_numpy(url, name, triton):
    bind_floats(triton, name, echo)
    timeouts = {"init_timeout_s": np.int64(60), "inference_timeout_s": np.float32(60)}
    with FuturesModelClient(url, name, max_workers=np.int64(2), max_queue_size=np.int32(2), **timeouts) as client:
        assert client.infer_sample(np.ones(1, np.float32)).result()["y"].tolist() == [1]


@pytest.mark.parametrize("arguments", [{"max_workers": 0}, {"max_queue_size": 0}, {"max_workers": True}], ids=repr)
def test_invalid_sizes(arguments):
    with pytest.raises(PyTritonClientValueError, match="give an integer from 1"):
        FuturesModelClient("localhost", "any", **arguments)
