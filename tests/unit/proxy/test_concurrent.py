"""Coroutines and functions at a worker, driven like by a model instance."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import numpy as np
import pytest
from executors import INTERNAL, x, y
from wiring import TIMEOUT_S, next_notification, wait_until

from pytriton.model_config import Tensor
from pytriton.proxy.context import MODEL
from pytriton.proxy.transport import notification_sender
from pytriton.proxy.types import Response
from pytriton.proxy.wire.inference import RequestMetadata
from pytriton.proxy.wire.registration import ExecutionMode
from pytriton.proxy.worker.threads import ThreadPool


class TestCoroutines:
    def test_each_request_gets_one_response(self, serve):
        async def double(requests):
            await asyncio.sleep(0)
            return [[request["x"] * 2] for request in requests]

        _, instance = serve(double, decoupled=False)
        before = time.monotonic_ns()
        sequence = instance.notify(x(1), x(2, 3))

        for request, expected in [(0, [[2]]), (1, [[4, 6]])]:
            reply, outputs = instance.next_response()
            assert (reply.sequence, reply.request) == (sequence, request)
            assert (reply.final, reply.response, reply.failure) == (True, True, None)
            assert outputs["y"].tolist() == expected
            assert before <= reply.compute_start_ns <= reply.compute_end_ns

    def test_many_batches_run_at_a_time_and_end_in_any_order(self, serve):
        count = 20
        gates = {}

        async def infer(requests):
            number = int(requests[0]["x"][0, 0])
            gates[number] = asyncio.Event()
            await gates[number].wait()
            if number:
                gates[number - 1].set()
            return [y(number)]

        _, instance = serve(infer, decoupled=False)
        sequences = [instance.notify(x(number)) for number in range(count)]
        wait_until(lambda: len(gates) == count)
        asyncio.run_coroutine_threadsafe(set_soon(gates[count - 1]), gates[0]._loop).result(TIMEOUT_S)

        for number in reversed(range(count)):
            reply, outputs = instance.next_response()
            assert (reply.sequence, outputs["y"].tolist()) == (sequences[number], [[number]])

    @pytest.mark.parametrize("decoupled", [True, False])
    def test_responses_of_one_iteration_of_the_loop_are_sent_together(self, serve, monkeypatch, decoupled):
        count = 40
        waiting = []
        calls = []

        def counted(system_call):
            return lambda *args: calls.append(system_call) or system_call(*args)

        for name in ("_send", "_sendmmsg"):
            monkeypatch.setattr(notification_sender, name, counted(getattr(notification_sender, name)))

        async def infer(requests):
            waiting.append(asyncio.get_running_loop().create_future())
            if len(waiting) == count:
                calls.clear()  # those by which the batches were sent
                for future in waiting:
                    future.set_result(None)
            await waiting[-1]
            return [y(1)]

        _, instance = serve(infer, decoupled=decoupled)
        sequences = [instance.notify(x(1)) for _ in range(count)]

        assert sorted(instance.next_response()[0].sequence for _ in sequences) == sequences
        assert 0 < len(calls) < count / 2
        if decoupled:
            assert instance.notifications < count / 2

    def test_callables_know_their_model(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        _, instance = serve(infer, decoupled=False)

        assert instance.stream(instance.notify(x(1))) == [[[1]]]

    def test_an_exception_among_the_responses_fails_its_request_alone(self, serve):
        async def infer(requests):
            return [y(1), ValueError("not this one"), y(3)]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.notify(x(1), x(2), x(3))

        assert instance.stream(sequence, 0) == [[[1]]]
        (failure,) = instance.stream(sequence, 1)
        assert (failure.code, failure.message) == (INTERNAL, "model 'm': ValueError: not this one")
        assert instance.stream(sequence, 2) == [[[3]]]

    @pytest.mark.parametrize("nothing", [None, Response({}, final=True)], ids=repr)
    def test_a_decoupled_model_may_send_no_response(self, serve, nothing):
        async def infer(requests):
            return [nothing, y(2)]

        _, instance = serve(infer)
        sequence = instance.notify(x(1), x(2))

        assert instance.stream(sequence, 0) == []
        assert instance.stream(sequence, 1) == [[[2]]]

    def test_a_model_that_is_not_decoupled_must_send_a_response(self, serve):
        async def infer(requests):
            return [None]

        _, instance = serve(infer, decoupled=False)

        (failure,) = instance.stream(instance.notify(x(1)))
        assert "the inference callable returned None" in failure.message

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt("no"), GeneratorExit("no")])
    def test_after_any_exception_the_next_batch_is_served(self, serve, error):
        async def infer(requests):
            await asyncio.sleep(0)
            if requests[0]["x"][0, 0] < 0:
                raise error
            return [y(1) for _ in requests]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.notify(x(-1), x(-2))

        for request in range(2):
            (failure,) = instance.stream(sequence, request)
            assert failure.message == f"model 'm': {type(error).__name__}: {error}"
            assert "in infer" in failure.detail
            assert "pytriton/proxy" not in failure.detail, "the traceback is that of the user's code"
        assert instance.stream(instance.notify(x(1))) == [[[1]]]

    def test_a_coroutine_cancelled_by_other_code_fails_its_requests(self, serve):
        async def infer(requests):
            raise asyncio.CancelledError

        _, instance = serve(infer, decoupled=False)

        (failure,) = instance.stream(instance.notify(x(1)))
        assert failure.message.startswith("model 'm': CancelledError")

    @pytest.mark.parametrize("returned", [None, y(1), [y(1)], "ab", 5])
    def test_a_wrong_number_of_responses_is_an_error(self, serve, returned):
        async def infer(requests):
            return returned

        _, instance = serve(infer, decoupled=False)
        sequence = instance.notify(x(1), x(2))

        for request in range(2):
            (failure,) = instance.stream(sequence, request)
            assert "the inference callable returned" in failure.message

    def test_inputs_are_released_once_the_responses_are_sent(self, serve):
        async def infer(requests):
            if requests[0]["x"][0, 0] < 0:
                raise ValueError("no")
            return [y(1)]

        _, instance = serve(infer, decoupled=False)
        gc.disable()  # what holds itself in a circle would stay
        try:
            for _ in range(3):
                instance.stream(instance.notify(x(1)))
                instance.stream(instance.notify(x(-1)))
            wait_until(lambda: instance.connection.arena.in_use() == 0)
        finally:
            gc.enable()


async def set_soon(event):
    event.set()


class TestAcknowledgements:
    """The backend waits for them before it sends another batch."""

    def test_a_batch_is_acknowledged_at_the_next_iteration_of_the_loop(self, serve):
        seen = []

        async def infer(requests):
            seen.append(instance.doorbell.acknowledged)  # how many batches were acknowledged
            return [y(1)]

        _, instance = serve(infer, has_doorbell=True)
        for _ in range(3):
            assert instance.stream(instance.notify(x(1))) == [[[1]]]

        assert seen == [0, 1, 2]
        wait_until(lambda: instance.doorbell.acknowledged == 3)

    def test_batches_that_arrive_together_are_acknowledged_together(self, serve):
        hold, held = threading.Event(), threading.Event()

        async def infer(requests):
            if not held.is_set():
                held.set()
                hold.wait(TIMEOUT_S)
            return [y(1)]

        _, instance = serve(infer, has_doorbell=True)
        sequences = [instance.notify(x(1)) for _ in range(4)]
        assert held.wait(TIMEOUT_S)
        assert instance.doorbell.acknowledged < 4
        hold.set()

        for sequence in sequences:
            assert instance.stream(sequence) == [[[1]]]
        wait_until(lambda: instance.doorbell.acknowledged == 4)

    def test_streams_of_a_loop_do_not_delay_the_next_batch(self, serve):
        async def infer(requests):
            yield [y(1)]

        _, instance = serve(infer, has_doorbell=True)

        assert instance.welcome.offset == 0


class TestPlainFunctions:
    """Functions of decoupled models, and what they return."""

    def test_a_list_is_one_response_for_each_request(self, serve):
        worker, instance = serve(lambda requests: [y(1), None])
        assert worker.max_in_flight == 1
        sequence = instance.notify(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[1]]]
        assert instance.stream(sequence, 1) == []

    def test_a_coroutine_is_awaited(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        _, instance = serve(lambda requests: infer(requests))

        assert instance.stream(instance.notify(x(1))) == [[[1]]]

    def test_a_coroutine_is_awaited_in_sequential_mode_too(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        worker, instance = serve(lambda requests: infer(requests), decoupled=False)
        assert worker.mode is ExecutionMode.SEQUENTIAL

        _, outputs = instance.infer(x(1))
        assert outputs["y"][0].tolist() == [[1]]

    def test_an_async_generator_is_a_stream(self, serve):
        async def infer(requests):
            for number in range(3):
                yield [y(number)]
            raise ValueError("no more")

        _, instance = serve(lambda requests: infer(requests))
        *items, failure = instance.stream(instance.notify(x(1)))

        assert items == [[[0]], [[1]], [[2]]]
        assert failure.message == "model 'm': ValueError: no more"


class TestOutputs:
    def test_a_result_that_does_not_fit_fails_its_request_alone(self, direct):
        async def infer(requests):
            large = np.zeros((1, 1 << 20), np.float32)
            for number in range(3):
                yield [y(number), {"y": large} if number == 1 else y(number), y(number)]

        _, instance = direct(infer, capacity=1 << 20)
        sequence = instance.notify(x(1), x(2), x(3))

        for request in (0, 2):
            assert instance.stream(sequence, request) == [[[0]], [[1]], [[2]]]
        first, failure = instance.stream(sequence, 1)
        assert first == [[0]]
        assert failure.code == INTERNAL
        assert "larger than shared memory may be" in failure.message

    def test_results_that_do_not_fit_together_are_sent_one_by_one(self, direct):
        async def infer(requests):
            size = 1 if len(requests) == 1 else (1 << 17) - 1000
            return [{"y": np.full((1, size), number, np.float32)} for number, _ in enumerate(requests)]

        _, instance = direct(infer, capacity=1 << 22)
        instance.notify(x(1))
        notification = next_notification(instance.channel)
        kept = instance.results.lease(
            notification.offset, notification.size
        )  # half of the memory is not to be had in one piece
        sequence = instance.notify(*[x(1)] * 6)

        for request in range(6):
            (item,) = instance.stream(sequence, request)
            assert set(item[0]) == {request}
        assert instance.notifications == 6
        del kept

    def test_bytes_and_strings_are_returned(self, serve):
        values = np.array([[b"a\0", "é", bytearray(b"b"), ""]], object)

        async def infer(requests):
            yield [{"y": values}]
            yield [{"y": np.array([["é", "ab"]])}]
            yield [{"y": np.array([[b"c", b"de"]])}]

        _, instance = serve(infer, outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])

        assert instance.stream(instance.notify(x(1))) == [
            [[b"a\0", "é".encode(), b"b", b""]],
            [["é".encode(), b"ab"]],
            [[b"c", b"de"]],
        ]

    @pytest.mark.parametrize("value", [5, None, [b"a"]], ids=repr)
    def test_objects_other_than_bytes_are_an_error(self, serve, value):
        array = np.empty((1, 2), object)
        array[:] = [[b"a", value]]

        async def infer(requests):
            yield [{"y": np.array([[b"a"]], object)}]
            yield [{"y": array}]

        _, instance = serve(infer, outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
        first, failure = instance.stream(instance.notify(x(1)))

        assert first == [[b"a"]]
        assert f"output 'y' contains {value!r}" in failure.message
        assert instance.stream(instance.notify(x(1)))[0] == [[b"a"]]

    def test_outputs_that_are_not_requested_may_be_missing(self, serve):
        outputs = [Tensor(name=name, shape=(-1,), dtype=np.float32) for name in ("y", "z")]

        async def infer(requests):
            return [y(1) for _ in requests]

        _, instance = serve(infer, outputs=outputs, strict=True)
        only_y = RequestMetadata(outputs=[0])

        assert instance.stream(instance.notify(x(1), metadata=[only_y])) == [[[1]]]
        (failure,) = instance.stream(instance.notify(x(1), metadata=[RequestMetadata(outputs=[1])]))
        assert failure.message == "model 'm': the inference callable did not return the output 'z'"

    def test_memory_is_reused_and_released(self, direct):
        async def infer(requests):
            yield [{"y": np.ones((1, 1 << 16), np.float32)}]

        made, instance = direct(infer, capacity=1 << 22)
        for _ in range(50):  # of which all together take three times as much
            ((item,),) = instance.stream(instance.notify(x(1)))
            assert set(item) == {1}

        arena = made.executor._arena
        wait_until(lambda: arena.in_use() == 0)
        wait_until(lambda: os.fstat(arena.fd).st_blocks * 512 <= 1 << 17)

    def test_a_stream_that_is_not_read_fails_once_memory_is_full(self, direct):
        async def infer(requests):
            for number in range(50):
                yield [{"y": np.full((1, 1 << 16), number, np.float32)}]

        made, instance = direct(infer, capacity=1 << 22)
        sequence = instance.notify(x(1))
        wait_until(lambda: made.executor._responses._pending_errors)  # for which there is no room either

        *items, failure = instance.stream(sequence)
        assert [item[0][0] for item in items] == list(range(len(items)))
        assert "no room for results" in failure.message
        assert len(instance.stream(instance.notify(x(1)))) > 5


def test_many_threads_and_coroutines_respond_side_by_side(direct):
    """Of functions whose coroutines and streams run in the loop and in threads, some of which send too much."""

    async def coroutine(requests):
        await asyncio.sleep(0)
        return [y(1)]

    async def async_generator(requests):
        for number in range(5):
            yield [y(number)]

    def too_large(requests):
        yield [y(1)]
        yield [{"y": np.zeros((1, 1 << 20), np.float32)}]
        yield [y(2)]

    async def too_large_later(requests):
        for step in too_large(requests):
            yield step

    callables = [coroutine, async_generator, too_large, too_large_later, lambda requests: [y(9)]]

    def infer(requests):
        return callables[int(requests[0]["x"][0, 0])](requests)

    pool = ThreadPool(4, "pytriton-worker-m")
    _, instance = direct(infer, capacity=1 << 20, pool=pool)
    sequences = [instance.notify(x(number % len(callables))) for number in range(200)]
    expected = [[[[1]]], [[[number]] for number in range(5)], [[[1]]], [[[1]]], [[[9]]]]
    for number, sequence in enumerate(sequences):
        items = instance.stream(sequence)
        if number % len(callables) in (2, 3):
            assert "larger than shared memory may be" in items.pop().message
        assert items == expected[number % len(callables)]
    pool.stop()
