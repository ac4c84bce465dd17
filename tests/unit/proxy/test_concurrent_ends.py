"""Coroutines and streams that are cancelled, and executors that end."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time

import psutil
import pytest
from executors import SOON_S, UNAVAILABLE, one_by_one, threads, x, y
from wiring import TIMEOUT_S, channels, next_notification, wait_until

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.worker import ENDED


class Ended:
    """Records how a callable ends that waits or yields for ever."""

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
    sequence = instance.notify(x(1), x(2))
    assert ended.begun.wait(TIMEOUT_S)
    return ended, worker, instance, sequence


class TestCancellation:
    def test_a_batch_ends_its_callable_once_all_requests_are_cancelled(self, endless):
        ended, worker, instance, sequence = endless
        instance.cancel(sequence, 0)
        assert not ended.ended.wait(0.2), "one of its requests is wanted"

        instance.cancel(sequence, 1)

        assert ended.ended.wait(SOON_S)
        assert ended.how in ([asyncio.CancelledError], [GeneratorExit])
        for request in range(2):  # and the instance is notified, so that it has room for another
            assert all(item == [[1]] for item in instance.stream(sequence, request))
        assert worker.connections == 1

    def test_a_request_knows_whether_it_is_cancelled(self, serve):
        seen = []

        def infer(requests):
            yield [y(1), y(1)]
            wait_until(lambda: requests[1].is_cancelled())
            seen.append([request.is_cancelled() for request in requests])
            yield [y(2), y(2)]

        _, instance = serve(infer)
        sequence = instance.notify(x(1), x(2))
        instance.next_response()
        instance.cancel(sequence, 1)

        assert instance.stream(sequence, 0)[-1] == [[2]]
        assert seen == [[False, True]]

    def test_a_plain_function_sees_the_cancellation_of_its_request(self, serve):
        begun = threading.Event()

        def infer(requests):
            begun.set()
            wait_until(lambda: requests[0].is_cancelled())
            return [y(1)]

        _, instance = serve(infer, decoupled=False)
        sequence = instance.notify(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert instance.response([1])[1]["y"][0].tolist() == [[1]]

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
        sequence = instance.notify(x(1), x(2))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence, 0)

        assert instance.stream(sequence, 1) == [[[2]]]
        assert sorted(calls) == ["failing", "first", "late"]
        assert "in a callback" in caplog.text

    def test_a_cancelled_batch_that_waits_for_a_thread_is_not_started(self, serve):
        begun, gate = [], threading.Event()

        def infer(requests):
            begun.append(requests[0]["x"][0, 0])
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        _, instance = serve(infer, max_in_flight=1)
        first, second = instance.notify(x(1)), instance.notify(x(2))
        wait_until(lambda: begun)
        instance.cancel(second)
        wait_until(lambda: instance.connection.arena.in_use() == 2)
        threading.Event().wait(0.2)  # in which the executor has polled
        gate.set()

        assert instance.stream(first) == [[[1]]]
        assert instance.stream(second) == []
        assert begun == [1]

    def test_a_stream_that_ignores_its_cancellation_is_closed(self, serve):
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
        sequence = instance.notify(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert closed.wait(SOON_S)
        assert instance.stream(sequence) == [[[1]]]

    def test_a_cleanup_may_take_a_while(self, serve):
        begun, cleaned = threading.Event(), []

        async def infer(requests):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.3)  # several polls of the executor, none of which cancels it again
                cleaned.append(True)

        _, instance = serve(infer)
        sequence = instance.notify(x(1), x(2))
        assert begun.wait(TIMEOUT_S)
        for request in range(2):
            instance.cancel(sequence, request)

        assert instance.stream(sequence) == []
        assert cleaned == [True]

    def test_an_error_of_a_cancelled_callable_is_logged(self, serve, caplog):
        begun = threading.Event()

        async def infer(requests):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                raise ValueError("while it ends")

        _, instance = serve(infer)
        sequence = instance.notify(x(1))
        assert begun.wait(TIMEOUT_S)
        instance.cancel(sequence)

        assert instance.stream(sequence) == [], "no client is connected"
        assert "while it ends" in caplog.text


class TestEnd:
    def test_streams_that_are_ended_send_the_reason(self, endless):
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
            next_notification(instance.channel)

    def test_a_disconnected_instance_ends_its_batches_and_leaves_nothing(self, endless):
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

    def test_closing_times_out(self, serve):
        gate, begun = threading.Event(), threading.Event()

        def infer(requests):
            begun.set()
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer)
        instance.notify(x(1))
        assert begun.wait(TIMEOUT_S)

        worker.close(0.01)

        with pytest.raises(EOFError):
            next_notification(instance.channel)
        gate.set()

    def test_a_closed_worker_accepts_no_more_instances(self, serve):
        worker, instance = serve(Ended().coroutine)
        worker.close(TIMEOUT_S)
        ours, theirs = channels()

        worker.serve(theirs, os.dup(instance.connection.arena.fd))

        with pytest.raises(EOFError):
            ours.receive()
        ours.close()

    def test_a_batch_that_arrives_with_the_disconnection_is_not_started(self, direct):
        begun, gate, blocked = [], threading.Event(), threading.Event()

        async def infer(requests):
            begun.append(True)
            await asyncio.Event().wait()

        made, instance = direct(infer)
        made.loop.get().call_soon_threadsafe(lambda: (blocked.set(), gate.wait(TIMEOUT_S)))
        assert blocked.wait(TIMEOUT_S)
        instance.notify(x(1))
        instance.channel.close()
        gate.set()

        assert made.closed.wait(TIMEOUT_S)
        assert made.executor.wait(TIMEOUT_S), "nothing is in flight"
        assert begun == []

    @pytest.mark.parametrize(
        "notification",
        [Notification(99, 1, 0, 0), Notification(NotificationKind.BATCH, 9, 64, 8), Notification(3, 9, 2**62, 64)],
    )
    def test_a_malformed_notification_closes_the_connection(self, endless, notification):
        ended, worker, instance, _ = endless
        instance.channel.send(notification)

        with pytest.raises(EOFError):
            while True:
                next_notification(instance.channel)
        assert ended.ended.wait(SOON_S)
        wait_until(lambda: worker.connections == 0)

    def test_an_instance_that_cannot_be_watched_is_disconnected(self, serve, monkeypatch, caplog):
        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", fail)

        async def infer(requests):
            return [y(1)]

        worker, instance = serve(infer, decoupled=False)

        with pytest.raises(EOFError):
            next_notification(instance.channel)
        wait_until(lambda: worker.connections == 0)
        assert "cannot be served and closes its connection" in caplog.text

    def test_an_invalid_arena_closes_the_connection(self, serve):
        worker, _ = serve(Ended().coroutine)
        gc.collect()
        files = psutil.Process().num_fds()
        ours, theirs = channels()
        with pytest.raises((OSError, ValueError)):
            worker.serve(theirs, os.memfd_create("empty"))

        with pytest.raises(EOFError):
            ours.receive()
        ours.close()
        assert psutil.Process().num_fds() <= files

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
    def test_an_unrecoverable_error_is_reported_after_its_response(self, serve, kind):
        reported = threading.Event()
        error = PyTritonUnrecoverableError("gone")

        async def coroutine(requests):
            raise error

        def steps(requests):
            yield [y(1)]
            raise error

        errors = []

        def on_unrecoverable(told_error):
            errors.append(told_error)
            reported.set()

        _, instance = serve(coroutine if kind == "coroutine" else one_by_one(kind, steps), on_unrecoverable)
        sequence = instance.notify(x(1))
        assert reported.wait(TIMEOUT_S)

        assert errors == [error]
        assert instance.channel.receive_now() is not None, "the response was sent before"
        next_one = instance.notify(x(1))  # the worker continues, until it is stopped
        assert instance.stream(next_one)[-1].message == "model 'm': PyTritonUnrecoverableError: gone"
        assert next_one > sequence

    def test_a_worker_reports_since_when_it_is_idle(self, serve):
        gate = threading.Event()

        def infer(requests):
            assert gate.wait(TIMEOUT_S)
            yield [y(1)]

        worker, instance = serve(infer)
        assert worker.idle_since() == 0
        sequence = instance.notify(x(1))
        wait_until(lambda: worker.idle_since() > 0)
        before = time.monotonic()
        assert worker.idle_since() >= before
        gate.set()
        instance.stream(sequence)

        wait_until(lambda: worker.idle_since() < time.monotonic() - 0.05)
        assert worker.idle_since() >= before
