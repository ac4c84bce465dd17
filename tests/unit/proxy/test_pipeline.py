"""Coroutines and streams, driven as a model instance in the server drives them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import numpy as np
import psutil
import pytest
from wiring import TIMEOUT_S, Instance, bell_of, channels, wait_until

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.arena import Arena, PeerArena
from pytriton.proxy.context import MODEL
from pytriton.proxy.pipeline import Pipeline
from pytriton.proxy.protocol import Bell, BellKind, Details
from pytriton.proxy.threads import EventLoop, ThreadPool
from pytriton.proxy.types import Response
from pytriton.proxy.worker import ENDED, Worker

INTERNAL, UNAVAILABLE = 1, 4
SOON_S = 2  # in which what is to happen at once does, on a busy machine; the pipeline takes 0.05 s
OUTPUTS = [Tensor(name="y", shape=(-1,), dtype=np.float32)]


def x(*values):
    return {"x": np.array([values], np.float32)}


def y(*values):
    return {"y": np.array([values], np.float32)}


def one_by_one(kind, generator):
    """A generator function, as it is or as an async one."""

    async def steps(requests):
        for step in generator(requests):
            yield step

    return generator if kind == "generator" else steps


both = pytest.mark.parametrize("kind", ["generator", "async generator"])


@pytest.fixture
def serve(wire):
    """Starts workers for inference callables, each with one instance connected."""
    started = []

    def serve(infer_func, on_unrecoverable=None, *, decoupled=True, outputs=OUTPUTS, **config):
        connection = wire(outputs=outputs, config=ModelConfig(decoupled=decoupled, **config))
        loop = EventLoop("pytriton-loop-m")
        worker = Worker(infer_func, connection.signature, on_unrecoverable, loop)
        instance = Instance(connection, worker)
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


def threads():
    return [each for each in threading.enumerate() if each.name in ("pytriton-worker-m", "pytriton-loop-m")]


class Direct:
    """A pipeline by itself, for what a worker does not let be set."""

    def __init__(self, infer_func, signature, *, capacity=1 << 26, pool=None):
        self.loop = EventLoop("pytriton-loop-m")
        self.closed = threading.Event()
        self._capacity = capacity
        self._arguments = (infer_func, signature, self.loop.get(), pool)

    def start(self, channel, peer_fd):
        arena = Arena(self._capacity)
        self.pipeline = Pipeline(
            channel, PeerArena(peer_fd), arena, *self._arguments, lambda pipeline: self.closed.set(), None
        )
        channel.send(Bell(BellKind.WELCOME, 0, 0, 0), arena.fd)
        self.loop.get().call_soon_threadsafe(self.pipeline.open)


@pytest.fixture
def direct(wire):
    """Makes pipelines, each with one instance connected."""
    made = []

    def direct(infer_func, **arguments):
        connection = wire(outputs=OUTPUTS, config=ModelConfig(decoupled=True))
        made.append(Direct(infer_func, connection.signature, **arguments))
        return made[-1], Instance(connection, made[-1])

    yield direct
    for each in made:
        each.pipeline.close()
        assert each.closed.wait(TIMEOUT_S)
        each.loop.stop()


class TestCoroutines:
    def test_they_answer_each_request_in_one_response(self, serve):
        async def double(requests):
            await asyncio.sleep(0)
            return [[request["x"] * 2] for request in requests]

        _, instance = serve(double, decoupled=False)
        before = time.monotonic_ns()
        sequence = instance.ring(x(1), x(2, 3))

        for request, expected in [(0, [[2]]), (1, [[4, 6]])]:
            answer, outputs = instance.next_answer()
            assert (answer.sequence, answer.request) == (sequence, request)
            assert (answer.final, answer.response, answer.failure) == (True, True, None)
            assert outputs["y"].tolist() == expected
            assert before <= answer.compute_start_ns <= answer.compute_end_ns

    def test_many_batches_run_at_a_time_and_are_answered_in_any_order(self, serve):
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
        sequences = [instance.ring(x(number)) for number in range(count)]
        wait_until(lambda: len(gates) == count)
        asyncio.run_coroutine_threadsafe(set_soon(gates[count - 1]), gates[0]._loop).result(TIMEOUT_S)

        for number in reversed(range(count)):
            answer, outputs = instance.next_answer()
            assert (answer.sequence, outputs["y"].tolist()) == (sequences[number], [[number]])

    def test_answers_that_are_there_together_travel_together(self, serve):
        count = 40
        waiting = []

        async def infer(requests):
            waiting.append(asyncio.get_running_loop().create_future())
            if len(waiting) == count:
                for future in waiting:
                    future.set_result(None)
            await waiting[-1]
            return [y(1)]

        _, instance = serve(infer, decoupled=False)
        sequences = [instance.ring(x(1)) for _ in range(count)]

        assert sorted(instance.next_answer()[0].sequence for _ in sequences) == sequences
        assert instance.bells < count / 2

    def test_they_know_the_model_that_they_are_called_for(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        _, instance = serve(infer, decoupled=False)

        assert instance.stream(instance.ring(x(1))) == [[[1]]]

    def test_an_exception_among_the_responses_fails_its_request_alone(self, serve):
        async def infer(requests):
            return [y(1), ValueError("not this one"), y(3)]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.ring(x(1), x(2), x(3))

        assert instance.stream(sequence, 0) == [[[1]]]
        (failure,) = instance.stream(sequence, 1)
        assert (failure.code, failure.message) == (INTERNAL, "model 'm': ValueError: not this one")
        assert instance.stream(sequence, 2) == [[[3]]]

    @pytest.mark.parametrize("nothing", [None, Response({}, final=True)], ids=repr)
    def test_a_decoupled_one_may_answer_with_nothing(self, serve, nothing):
        async def infer(requests):
            return [nothing, y(2)]

        _, instance = serve(infer)
        sequence = instance.ring(x(1), x(2))

        assert instance.stream(sequence, 0) == []
        assert instance.stream(sequence, 1) == [[[2]]]

    def test_one_that_is_not_decoupled_may_not(self, serve):
        async def infer(requests):
            return [None]

        _, instance = serve(infer, decoupled=False)

        (failure,) = instance.stream(instance.ring(x(1)))
        assert "the inference callable returned None" in failure.message

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt("no"), GeneratorExit("no")])
    def test_whatever_is_raised_is_answered_and_the_next_batch_too(self, serve, error):
        async def infer(requests):
            await asyncio.sleep(0)
            if requests[0]["x"][0, 0] < 0:
                raise error
            return [y(1) for _ in requests]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.ring(x(-1), x(-2))

        for request in range(2):
            (failure,) = instance.stream(sequence, request)
            assert failure.message == f"model 'm': {type(error).__name__}: {error}"
            assert "in infer" in failure.detail
            assert "pytriton/proxy" not in failure.detail, "the traceback is that of the user's code"
        assert instance.stream(instance.ring(x(1))) == [[[1]]]

    def test_one_that_is_cancelled_by_others_has_failed(self, serve):
        async def infer(requests):
            raise asyncio.CancelledError

        _, instance = serve(infer, decoupled=False)

        (failure,) = instance.stream(instance.ring(x(1)))
        assert failure.message.startswith("model 'm': CancelledError")

    @pytest.mark.parametrize("returned", [None, y(1), [y(1)], "ab", 5])
    def test_what_is_no_list_of_as_many_responses_is_an_error(self, serve, returned):
        async def infer(requests):
            return returned

        _, instance = serve(infer, decoupled=False)
        sequence = instance.ring(x(1), x(2))

        for request in range(2):
            (failure,) = instance.stream(sequence, request)
            assert "the inference callable returned" in failure.message

    def test_inputs_are_released_once_they_are_answered(self, serve):
        async def infer(requests):
            if requests[0]["x"][0, 0] < 0:
                raise ValueError("no")
            return [y(1)]

        _, instance = serve(infer, decoupled=False)
        gc.disable()  # what holds itself in a circle would stay
        try:
            for _ in range(3):
                instance.stream(instance.ring(x(1)))
                instance.stream(instance.ring(x(-1)))
            wait_until(lambda: instance.connection.arena.in_use() == 0)
        finally:
            gc.enable()


async def set_soon(event):
    event.set()


class TestStreams:
    @both
    def test_items_come_in_order(self, serve, kind):
        count = 100

        def infer(requests):
            for number in range(count):
                yield [y(number), y(-number)]

        _, instance = serve(one_by_one(kind, infer))
        sequence = instance.ring(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[number]] for number in range(count)]
        assert instance.stream(sequence, 1) == [[[-number]] for number in range(count)]

    @both
    def test_an_item_is_sent_before_the_next_one_is_asked_for(self, serve, kind):
        gate = threading.Event()

        def infer(requests):
            yield [y(1)]
            assert gate.wait(TIMEOUT_S)
            yield [y(2)]

        _, instance = serve(one_by_one(kind, infer))
        instance.ring(x(1))

        answer, outputs = instance.next_answer()
        assert (answer.final, outputs["y"].tolist()) == (False, [[1]])
        gate.set()
        assert instance.next_answer()[1]["y"].tolist() == [[2]]
        answer, _ = instance.next_answer()
        assert (answer.final, answer.response, answer.failure) == (True, False, None)

    @both
    def test_arrays_may_be_used_again_for_the_next_item(self, serve, kind):
        def infer(requests):
            array = np.zeros((1, 1000), np.float32)
            for number in range(20):
                array[:] = number
                yield [{"y": array}]

        _, instance = serve(one_by_one(kind, infer))

        assert [set(item[0]) for item in instance.stream(instance.ring(x(1)))] == [{number} for number in range(20)]

    @both
    def test_a_stream_may_have_no_items(self, serve, kind):
        _, instance = serve(one_by_one(kind, lambda requests: iter(())))

        assert instance.stream(instance.ring(x(1))) == []

    @both
    def test_each_request_has_an_end_of_its_own(self, serve, kind):
        steps = [
            [y(1), y(1), y(1), y(1)],
            [None, Response(y(2), final=True), Response({}, final=True), y(2)],
            [y(3), y(3), y(3), ValueError("not this one")],  # of those that have ended, nothing is sent
            [Response(y(4)), None, ValueError("ended already"), y(4)],
        ]
        _, instance = serve(one_by_one(kind, lambda requests: iter(steps)))
        sequence = instance.ring(x(1), x(2), x(3), x(4))

        assert instance.stream(sequence, 0) == [[[1]], [[3]], [[4]]]
        assert instance.stream(sequence, 1) == [[[1]], [[2]]]
        assert instance.stream(sequence, 2) == [[[1]]]
        *items, failure = instance.stream(sequence, 3)
        assert items == [[[1]], [[2]]]
        assert failure.message == "model 'm': ValueError: not this one"

    @both
    def test_one_whose_requests_have_all_ended_is_closed(self, serve, kind):
        closed = threading.Event()

        def infer(requests):
            try:
                while True:
                    yield [Response(y(1), final=True)]
            finally:
                closed.set()

        _, instance = serve(one_by_one(kind, infer))

        assert instance.stream(instance.ring(x(1))) == [[[1]]]
        assert closed.wait(TIMEOUT_S)

    @both
    def test_an_error_in_mid_stream_fails_those_that_have_not_ended(self, serve, kind):
        def infer(requests):
            yield [y(1), y(1)]
            yield [Response(y(2), final=True), None]
            raise ValueError("no more")

        _, instance = serve(one_by_one(kind, infer))
        sequence = instance.ring(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[1]], [[2]]]
        first, failure = instance.stream(sequence, 1)
        assert first == [[1]]
        assert (failure.code, failure.message) == (INTERNAL, "model 'm': ValueError: no more")

    @both
    @pytest.mark.parametrize("step", [None, [y(1), y(2)], y(1), [5], [{"z": np.ones((1, 1), np.float32)}]], ids=repr)
    def test_a_step_that_cannot_be_sent_ends_the_stream(self, serve, kind, step):
        closed = threading.Event()

        def infer(requests):
            try:
                yield [y(1)]
                yield step
            finally:
                closed.set()

        _, instance = serve(one_by_one(kind, infer))
        first, failure = instance.stream(instance.ring(x(1)))

        assert first == [[1]]
        assert failure.message.startswith("model 'm': the inference callable")
        assert closed.wait(TIMEOUT_S)

    @both
    def test_they_know_the_model_that_they_are_called_for(self, serve, kind):
        def infer(requests):
            yield [y(len(MODEL.get().name))]

        _, instance = serve(one_by_one(kind, infer))

        assert instance.stream(instance.ring(x(1))) == [[[1]]]

    def test_generators_run_in_as_many_threads_as_the_model_says(self, serve):
        running, gate = [], threading.Event()

        def infer(requests):
            running.append(threading.get_ident())
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer, max_in_flight=3)
        assert worker.in_flight == 3
        sequences = [instance.ring(x(1)) for _ in range(5)]
        wait_until(lambda: len(running) == 3)
        gate.set()

        for sequence in sequences:
            assert instance.stream(sequence) == [[[1]]]
        assert len(running) == 5
        assert len(set(running)) == 3

    def test_any_iterator_is_a_stream(self, serve):
        _, instance = serve(lambda requests: iter([[y(0)], [y(1)], [y(2)]]))

        assert instance.stream(instance.ring(x(1))) == [[[0]], [[1]], [[2]]]


class TestPlainFunctions:
    """Functions of decoupled models, and what they return."""

    def test_a_list_is_one_response_for_each_request(self, serve):
        worker, instance = serve(lambda requests: [y(1), None])
        assert worker.in_flight == 1
        sequence = instance.ring(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[1]]]
        assert instance.stream(sequence, 1) == []

    def test_a_coroutine_is_awaited(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        _, instance = serve(lambda requests: infer(requests))

        assert instance.stream(instance.ring(x(1))) == [[[1]]]

    def test_a_coroutine_is_awaited_where_one_batch_is_taken_at_a_time_too(self, serve):
        async def infer(requests):
            await asyncio.sleep(0)
            return [y(len(MODEL.get().name))]

        worker, instance = serve(lambda requests: infer(requests), decoupled=False)
        assert worker.in_flight == 0

        _, outputs = instance.infer(x(1))
        assert outputs["y"][0].tolist() == [[1]]

    def test_an_async_generator_is_a_stream(self, serve):
        async def infer(requests):
            for number in range(3):
                yield [y(number)]
            raise ValueError("no more")

        _, instance = serve(lambda requests: infer(requests))
        *items, failure = instance.stream(instance.ring(x(1)))

        assert items == [[[0]], [[1]], [[2]]]
        assert failure.message == "model 'm': ValueError: no more"


class Ended:
    """Notes how a callable of some kind ends that waits, or yields, for good."""

    def __init__(self):
        self.begun = threading.Event()
        self.how = []
        self.ended = threading.Event()

    async def coroutine(self, requests):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            self.how.append(type(error))
            raise
        finally:
            self.ended.set()

    async def async_generator(self, requests):
        try:
            while True:
                yield [y(1) for _ in requests]
                self.begun.set()
                await asyncio.sleep(0.01)
        except BaseException as error:
            self.how.append(type(error))
            raise
        finally:
            self.ended.set()

    async def waiting_generator(self, requests):
        yield [None for _ in requests]
        await self.coroutine(requests)

    def generator(self, requests):
        try:
            while True:
                yield [y(1) for _ in requests]
                self.begun.set()
                time.sleep(0.01)
        except BaseException as error:
            self.how.append(type(error))
            raise
        finally:
            self.ended.set()


KINDS = ["coroutine", "async_generator", "waiting_generator", "generator"]


@pytest.fixture(params=KINDS)
def endless(request, serve):
    """A callable that does not end by itself, in the middle of a batch of two requests."""
    ended = Ended()
    worker, instance = serve(getattr(ended, request.param), decoupled=True)
    sequence = instance.ring(x(1), x(2))
    assert ended.begun.wait(TIMEOUT_S)
    return ended, worker, instance, sequence


class TestCancellation:
    def test_a_batch_that_nobody_wants_ends_its_callable(self, endless):
        ended, worker, instance, sequence = endless
        instance.cancel(sequence, 0)
        assert not ended.ended.wait(0.2), "one of its requests is wanted"

        instance.cancel(sequence, 1)

        assert ended.ended.wait(SOON_S)
        assert ended.how in ([asyncio.CancelledError], [GeneratorExit])
        for request in range(2):  # and the instance is told, so that it has room for another
            assert all(item == [[1]] for item in instance.stream(sequence, request))
        assert worker.connections == 1

    def test_a_request_can_be_asked(self, serve):
        seen = []

        def infer(requests):
            yield [y(1), y(1)]
            wait_until(lambda: requests[1].is_cancelled())
            seen.append([request.is_cancelled() for request in requests])
            yield [y(2), y(2)]

        _, instance = serve(infer)
        sequence = instance.ring(x(1), x(2))
        instance.next_answer()
        instance.cancel(sequence, 1)

        assert instance.stream(sequence, 0)[-1] == [[2]]
        assert seen == [[False, True]]

    def test_a_function_can_ask_too(self, serve):
        begun = threading.Event()

        def infer(requests):
            begun.set()
            wait_until(lambda: requests[0].is_cancelled())
            return [y(1)]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.ring(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert instance.answer([1])[1]["y"][0].tolist() == [[1]]

    def test_callbacks_are_called_once(self, serve, caplog):
        calls, begun = [], threading.Event()

        def fail():
            calls.append("failing")
            raise IndexError("in a callback")

        async def infer(requests):
            batch = requests[0]._batch
            batch.on_cancel(0, lambda: calls.append("first"))
            batch.on_cancel(0, fail)
            batch.on_cancel(0, lambda: calls.append("removed"))()
            batch.on_cancel(1, lambda: calls.append("of another request"))
            begun.set()
            while len(calls) < 2:
                await asyncio.sleep(0.01)
            batch.on_cancel(0, lambda: calls.append("late"))
            await asyncio.sleep(0.2)
            return [y(1), y(2)]

        _, instance = serve(infer)
        sequence = instance.ring(x(1), x(2))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence, 0)

        assert instance.stream(sequence, 1) == [[[2]]]
        assert sorted(calls) == ["failing", "first", "late"]
        assert "in a callback" in caplog.text

    def test_a_batch_that_waits_for_a_thread_is_not_begun(self, serve):
        begun, gate = [], threading.Event()

        def infer(requests):
            begun.append(requests[0]["x"][0, 0])
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        _, instance = serve(infer, max_in_flight=1)
        first, second = instance.ring(x(1)), instance.ring(x(2))
        wait_until(lambda: begun)
        instance.cancel(second)
        wait_until(lambda: instance.connection.arena.in_use() == 2)
        threading.Event().wait(0.2)  # in which the pipeline has looked
        gate.set()

        assert instance.stream(first) == [[[1]]]
        assert instance.stream(second) == []
        assert begun == [1]

    def test_a_stream_that_goes_on_when_it_is_cancelled_is_closed(self, serve):
        closed, begun = threading.Event(), threading.Event()

        async def infer(requests):
            try:
                while True:
                    try:
                        begun.set()
                        await asyncio.sleep(TIMEOUT_S)
                    except asyncio.CancelledError:
                        yield [y(1)]
            finally:
                closed.set()

        _, instance = serve(infer)
        sequence = instance.ring(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert closed.wait(SOON_S)
        assert instance.stream(sequence) == [[[1]]]

    def test_cleaning_up_may_take_a_while(self, serve):
        begun, cleaned = threading.Event(), []

        async def infer(requests):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.3)  # several looks of the pipeline, none of which cancels it again
                cleaned.append(True)

        _, instance = serve(infer)
        sequence = instance.ring(x(1), x(2))
        assert begun.wait(TIMEOUT_S)
        for request in range(2):
            instance.cancel(sequence, request)

        assert instance.stream(sequence) == []
        assert cleaned == [True]

    def test_an_error_when_it_is_to_end_goes_to_the_log(self, serve, caplog):
        begun = threading.Event()

        async def infer(requests):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                raise ValueError("while it ends")

        _, instance = serve(infer)
        sequence = instance.ring(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert instance.stream(sequence) == [], "nobody is there to be told"
        assert "while it ends" in caplog.text


class TestEnd:
    def test_streams_that_are_ended_say_why(self, endless):
        ended, worker, instance, sequence = endless
        worker.end_streams("it is late")

        for request in range(2):
            *items, failure = instance.stream(sequence, request)
            assert all(item == [[1]] for item in items)
            assert (failure.code, failure.message) == (UNAVAILABLE, "model 'm': it is late")
        assert ended.ended.wait(SOON_S)

    def test_closing_ends_streams_and_waits_for_them(self, endless):
        ended, worker, instance, sequence = endless
        worker.close(TIMEOUT_S)

        assert ended.ended.is_set()
        for request in range(2):
            failure = instance.stream(sequence, request)[-1]
            assert (failure.code, failure.message) == (UNAVAILABLE, f"model 'm': {ENDED}")
        with pytest.raises(EOFError):
            bell_of(instance.channel)

    def test_an_instance_that_leaves_ends_all_and_leaves_nothing(self, endless):
        ended, worker, instance, _ = endless
        files = psutil.Process().num_fds()
        loop = worker._loop.get()

        instance.channel.close()

        assert ended.ended.wait(SOON_S)
        wait_until(lambda: worker.connections == 0)
        wait_until(lambda: not asyncio.all_tasks(loop))
        wait_until(lambda: (gc.collect(), psutil.Process().num_fds())[1] <= files - 4)  # two sockets, two arenas
        wait_until(lambda: (gc.collect(), instance.connection.arena.in_use())[1] == 0)
        worker.close(TIMEOUT_S)
        worker._loop.stop()
        for thread in threads():
            thread.join(TIMEOUT_S)
        assert threads() == []

    def test_closing_does_not_wait_for_ever(self, serve):
        gate, begun = threading.Event(), threading.Event()

        def infer(requests):
            begun.set()
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer)
        instance.ring(x(1))
        assert begun.wait(TIMEOUT_S)

        worker.close(0.01)

        with pytest.raises(EOFError):
            bell_of(instance.channel)
        gate.set()

    def test_a_closed_worker_takes_no_more_instances(self, serve):
        worker, instance = serve(Ended().coroutine)
        worker.close(TIMEOUT_S)
        ours, theirs = channels()

        worker.start(theirs, os.dup(instance.connection.arena.fd))

        with pytest.raises(EOFError):
            ours.receive()
        ours.close()

    def test_a_batch_that_comes_with_the_end_is_not_begun(self, direct):
        begun, gate, blocked = [], threading.Event(), threading.Event()

        async def infer(requests):
            begun.append(True)
            await asyncio.Event().wait()

        made, instance = direct(infer)
        made.loop.get().call_soon_threadsafe(lambda: (blocked.set(), gate.wait(TIMEOUT_S)))
        assert blocked.wait(TIMEOUT_S)
        instance.ring(x(1))
        instance.channel.close()
        gate.set()

        assert made.closed.wait(TIMEOUT_S)
        assert made.pipeline.wait(TIMEOUT_S), "nothing is in flight"
        assert begun == []

    @pytest.mark.parametrize("bell", [Bell(99, 1, 0, 0), Bell(BellKind.BATCH, 9, 64, 8), Bell(3, 9, 2**62, 64)])
    def test_nonsense_from_the_instance_ends_the_connection(self, endless, bell):
        ended, worker, instance, _ = endless
        instance.channel.send(bell)

        with pytest.raises(EOFError):
            while True:
                bell_of(instance.channel)
        assert ended.ended.wait(SOON_S)
        wait_until(lambda: worker.connections == 0)

    def test_an_arena_that_is_none_ends_the_connection(self, serve):
        worker, _ = serve(Ended().coroutine)
        gc.collect()
        files = psutil.Process().num_fds()
        ours, theirs = channels()
        with pytest.raises((OSError, ValueError)):
            worker.start(theirs, os.memfd_create("empty"))

        with pytest.raises(EOFError):
            ours.receive()
        ours.close()
        assert psutil.Process().num_fds() <= files

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
    def test_an_unrecoverable_error_is_told_once_it_is_answered(self, serve, kind):
        told = threading.Event()
        error = PyTritonUnrecoverableError("gone")

        async def coroutine(requests):
            raise error

        def steps(requests):
            yield [y(1)]
            raise error

        errors = []

        def on_unrecoverable(told_error):
            errors.append(told_error)
            told.set()

        _, instance = serve(coroutine if kind == "coroutine" else one_by_one(kind, steps), on_unrecoverable)
        sequence = instance.ring(x(1))
        assert told.wait(TIMEOUT_S)

        assert errors == [error]
        assert instance.channel.receive_now() is not None, "the answer was sent before"
        next_one = instance.ring(x(1))  # the worker goes on, until it is stopped
        assert instance.stream(next_one)[-1].message == "model 'm': PyTritonUnrecoverableError: gone"
        assert next_one > sequence

    def test_it_tells_since_when_it_has_been_idle(self, serve):
        gate = threading.Event()

        def infer(requests):
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer)
        assert worker.idle_since() == 0
        sequence = instance.ring(x(1))
        wait_until(lambda: worker.idle_since() > 0)
        before = time.monotonic()
        assert worker.idle_since() >= before
        gate.set()
        instance.stream(sequence)

        wait_until(lambda: worker.idle_since() < time.monotonic() - 0.05)
        assert worker.idle_since() >= before


class TestOutputs:
    def test_results_that_do_not_fit_become_an_error_of_their_request_alone(self, direct):
        async def infer(requests):
            large = np.zeros((1, 1 << 20), np.float32)
            for number in range(3):
                yield [y(number), {"y": large} if number == 1 else y(number), y(number)]

        _, instance = direct(infer, capacity=1 << 20)
        sequence = instance.ring(x(1), x(2), x(3))

        for request in (0, 2):
            assert instance.stream(sequence, request) == [[[0]], [[1]], [[2]]]
        first, failure = instance.stream(sequence, 1)
        assert first == [[0]]
        assert failure.code == INTERNAL
        assert "larger than shared memory may be" in failure.message

    def test_results_that_do_not_fit_together_go_one_by_one(self, direct):
        async def infer(requests):
            size = 1 if len(requests) == 1 else (1 << 17) - 1000
            return [{"y": np.full((1, size), number, np.float32)} for number, _ in enumerate(requests)]

        _, instance = direct(infer, capacity=1 << 22)
        instance.ring(x(1))
        bell = bell_of(instance.channel)
        kept = instance.results.lease(bell.offset, bell.size)  # half of the memory is not to be had in one piece
        sequence = instance.ring(*[x(1)] * 6)

        for request in range(6):
            (item,) = instance.stream(sequence, request)
            assert set(item[0]) == {request}
        assert instance.bells == 6
        del kept

    def test_bytes_and_strings_come_through(self, serve):
        values = np.array([[b"a\0", "é", bytearray(b"b"), ""]], object)

        async def infer(requests):
            yield [{"y": values}]
            yield [{"y": np.array([["é", "ab"]])}]
            yield [{"y": np.array([[b"c", b"de"]])}]

        _, instance = serve(infer, outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])

        assert instance.stream(instance.ring(x(1))) == [
            [[b"a\0", "é".encode(), b"b", b""]],
            [["é".encode(), b"ab"]],
            [[b"c", b"de"]],
        ]

    @pytest.mark.parametrize("value", [5, None, [b"a"]], ids=repr)
    def test_objects_that_are_no_bytes_are_an_error(self, serve, value):
        array = np.empty((1, 2), object)
        array[:] = [[b"a", value]]

        async def infer(requests):
            yield [{"y": np.array([[b"a"]], object)}]
            yield [{"y": array}]

        _, instance = serve(infer, outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
        first, failure = instance.stream(instance.ring(x(1)))

        assert first == [[b"a"]]
        assert f"an output of bytes holds {value!r}" in failure.message
        assert instance.stream(instance.ring(x(1)))[0] == [[b"a"]]

    def test_only_what_is_requested_has_to_be_there(self, serve):
        outputs = [Tensor(name=name, shape=(-1,), dtype=np.float32) for name in ("y", "z")]

        async def infer(requests):
            return [y(1) for _ in requests]

        _, instance = serve(infer, outputs=outputs)
        only_y = Details(outputs=[0])

        assert instance.stream(instance.ring(x(1), details=[only_y])) == [[[1]]]
        (failure,) = instance.stream(instance.ring(x(1), details=[Details(outputs=[1])]))
        assert failure.message == "model 'm': the inference callable did not return the output 'z'"

    def test_memory_is_used_again_and_given_back(self, direct):
        async def infer(requests):
            yield [{"y": np.ones((1, 1 << 16), np.float32)}]

        made, instance = direct(infer, capacity=1 << 22)
        for _ in range(50):  # of which all together take three times as much
            ((item,),) = instance.stream(instance.ring(x(1)))
            assert set(item) == {1}

        arena = made.pipeline._arena
        wait_until(lambda: arena.in_use() == 0)
        wait_until(lambda: os.fstat(arena.fd).st_blocks * 512 <= 1 << 17)

    def test_a_stream_that_is_not_read_fails_once_memory_is_full(self, direct):
        async def infer(requests):
            for number in range(50):
                yield [{"y": np.full((1, 1 << 16), number, np.float32)}]

        made, instance = direct(infer, capacity=1 << 22)
        sequence = instance.ring(x(1))
        wait_until(lambda: made.pipeline._replies._last_words)  # for which there is no room either

        *items, failure = instance.stream(sequence)
        assert [item[0][0] for item in items] == list(range(len(items)))
        assert "no room for results" in failure.message
        assert len(instance.stream(instance.ring(x(1)))) > 5


def test_many_threads_and_coroutines_answer_side_by_side(direct):
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
    sequences = [instance.ring(x(number % len(callables))) for number in range(200)]
    expected = [[[[1]]], [[[number]] for number in range(5)], [[[1]]], [[[1]]], [[[9]]]]
    for number, sequence in enumerate(sequences):
        items = instance.stream(sequence)
        if number % len(callables) in (2, 3):
            assert "larger than shared memory may be" in items.pop().message
        assert items == expected[number % len(callables)]
    pool.stop()
