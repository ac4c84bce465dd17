"""Streams at a worker, driven like by a model instance."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from executors import INTERNAL, both, one_by_one, x, y
from wiring import TIMEOUT_S, wait_until

from pytriton.proxy.context import MODEL
from pytriton.proxy.types import Response


class TestStreams:
    @both
    def test_items_arrive_in_order(self, serve, kind):
        count = 100

        def infer(requests):
            for number in range(count):
                yield [y(number), y(-number)]

        _, instance = serve(one_by_one(kind, infer))
        sequence = instance.notify(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[number]] for number in range(count)]
        assert instance.stream(sequence, 1) == [[[-number]] for number in range(count)]

    @both
    def test_an_item_is_sent_before_the_next_one_is_computed(self, serve, kind):
        gate = threading.Event()

        def infer(requests):
            yield [y(1)]
            assert gate.wait(TIMEOUT_S)
            yield [y(2)]

        _, instance = serve(one_by_one(kind, infer))
        instance.notify(x(1))

        reply, outputs = instance.next_response()
        assert (reply.final, outputs["y"].tolist()) == (False, [[1]])
        gate.set()
        assert instance.next_response()[1]["y"].tolist() == [[2]]
        reply, _ = instance.next_response()
        assert (reply.final, reply.response, reply.failure) == (True, False, None)

    @both
    def test_arrays_may_be_reused_for_the_next_item(self, serve, kind):
        def infer(requests):
            array = np.zeros((1, 1000), np.float32)
            for number in range(20):
                array[:] = number
                yield [{"y": array}]

        _, instance = serve(one_by_one(kind, infer))

        assert [set(item[0]) for item in instance.stream(instance.notify(x(1)))] == [{number} for number in range(20)]

    @both
    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"score": np.float32(0.5)}, r"parameter 'score' of a response is .*0\.5.*, of type float32: .*\.item"),
            ({"number": 1 << 63}, "parameter 'number' of a response is 9223372036854775808, of type int"),
            ({"none": None}, "parameter 'none' of a response is None, of type NoneType"),
            ({1: 2}, "parameter 1 of a response is 2, of type int"),
            ([("name", 1)], "parameters of a response are a dictionary, not a list"),
        ],
        ids=["numpy", "large", "none", "name", "list"],
    )
    def test_parameters_that_cannot_be_sent_are_an_error(self, serve, kind, parameters, message):
        _, instance = serve(one_by_one(kind, lambda requests: iter([[Response(y(1), parameters=parameters)]])))
        instance.notify(x(1))

        reply, _ = instance.next_response()
        assert reply.final and re.search(message, reply.failure.message), reply.failure

    @both
    def test_a_response_that_cannot_be_written_is_an_error_of_its_request_alone(self, serve, kind):
        class Unwritable(str):
            def encode(self, *_):
                raise RuntimeError("it has no bytes")

        steps = [[Response(y(1), parameters={"text": Unwritable("x")}), y(2)], [y(3), y(4)]]
        _, instance = serve(one_by_one(kind, lambda requests: iter(steps)))
        sequence = instance.notify(x(1), x(2))

        assert instance.stream(sequence, 1) == [[[2]], [[4]]]
        (failure,) = instance.stream(sequence, 0)
        assert "it has no bytes" in failure.message

    @both
    def test_a_stream_may_have_no_items(self, serve, kind):
        _, instance = serve(one_by_one(kind, lambda requests: iter(())))

        assert instance.stream(instance.notify(x(1))) == []

    @both
    def test_each_request_ends_by_itself(self, serve, kind):
        steps = [
            [y(1), y(1), y(1), y(1)],
            [None, Response(y(2), final=True), Response({}, final=True), y(2)],
            [y(3), y(3), y(3), ValueError("not this one")],  # of those that have ended, nothing is sent
            [Response(y(4)), None, ValueError("ended already"), y(4)],
        ]
        _, instance = serve(one_by_one(kind, lambda requests: iter(steps)))
        sequence = instance.notify(x(1), x(2), x(3), x(4))

        assert instance.stream(sequence, 0) == [[[1]], [[3]], [[4]]]
        assert instance.stream(sequence, 1) == [[[1]], [[2]]]
        assert instance.stream(sequence, 2) == [[[1]]]
        *items, failure = instance.stream(sequence, 3)
        assert items == [[[1]], [[2]]]
        assert failure.message == "model 'm': ValueError: not this one"

    @both
    def test_a_stream_is_closed_once_all_its_requests_have_ended(self, serve, kind):
        closed = threading.Event()

        def infer(requests):
            try:
                while True:
                    yield [Response(y(1), final=True)]
            finally:
                closed.set()

        _, instance = serve(one_by_one(kind, infer))

        assert instance.stream(instance.notify(x(1))) == [[[1]]]
        assert closed.wait(TIMEOUT_S)

    @both
    def test_an_error_in_mid_stream_fails_those_that_have_not_ended(self, serve, kind):
        def infer(requests):
            yield [y(1), y(1)]
            yield [Response(y(2), final=True), None]
            raise ValueError("no more")

        _, instance = serve(one_by_one(kind, infer))
        sequence = instance.notify(x(1), x(2))

        assert instance.stream(sequence, 0) == [[[1]], [[2]]]
        first, failure = instance.stream(sequence, 1)
        assert first == [[1]]
        assert (failure.code, failure.message) == (INTERNAL, "model 'm': ValueError: no more")

    @both
    @pytest.mark.parametrize("step", [None, [y(1), y(2)], y(1), [5], [{"z": np.ones((1, 1), np.float32)}]], ids=repr)
    def test_an_unsendable_step_ends_the_stream(self, serve, kind, step):
        closed = threading.Event()

        def infer(requests):
            try:
                yield [y(1)]
                yield step
            finally:
                closed.set()

        _, instance = serve(one_by_one(kind, infer))
        first, failure = instance.stream(instance.notify(x(1)))

        assert first == [[1]]
        assert failure.message.startswith("model 'm': the inference callable")
        assert closed.wait(TIMEOUT_S)

    @both
    def test_streams_know_their_model(self, serve, kind):
        def infer(requests):
            yield [y(len(MODEL.get().name))]

        _, instance = serve(one_by_one(kind, infer))

        assert instance.stream(instance.notify(x(1))) == [[[1]]]

    def test_generators_run_in_as_many_threads_as_the_model_says(self, serve):
        running, gate = [], threading.Event()

        def infer(requests):
            running.append(threading.get_ident())
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer, max_in_flight=3)
        assert worker.max_in_flight == 3
        sequences = [instance.notify(x(1)) for _ in range(5)]
        wait_until(lambda: len(running) == 3)
        gate.set()

        for sequence in sequences:
            assert instance.stream(sequence) == [[[1]]]
        assert len(running) == 5
        assert len(set(running)) == 3

    def test_any_iterator_is_a_stream(self, serve):
        _, instance = serve(lambda requests: iter([[y(0)], [y(1)], [y(2)]]))

        assert instance.stream(instance.notify(x(1))) == [[[0]], [[1]], [[2]]]
