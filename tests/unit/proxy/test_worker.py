"""A worker, driven like by a model instance."""

from __future__ import annotations

import errno
import gc
import os
import threading

import numpy as np
import psutil
import pytest
from executors import threads
from wiring import TIMEOUT_S, Instance, channels, next_notification, wait_until

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.transport import device_arena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import Worker

X = np.ones((1, 3), np.float32)


@pytest.fixture
def serve(wire):
    """Starts workers for inference callables, each with one instance connected."""
    started = []

    def serve(infer_func, on_unrecoverable=None):
        connection = wire()
        worker = Worker(infer_func, connection.signature, on_unrecoverable)
        instance = Instance(connection, worker)
        started.append((worker, instance))
        return worker, instance

    yield serve
    for worker, instance in started:
        instance.channel.close()
        worker.close(TIMEOUT_S)


def double(requests):
    return [[request["x"] * 2, request["x"]] for request in requests]


def failing(error):
    def fail(requests):
        raise error

    return fail


class TestWorker:
    def test_an_instance_is_welcomed_with_the_workers_arena(self, serve):
        worker, instance = serve(double)

        assert instance.welcome.kind == NotificationKind.WELCOME
        assert worker.connections == 1

    def test_batches_are_served_in_turn(self, serve):
        _, instance = serve(double)

        for rows in (1, 3, 2):
            x = np.full((rows, 2), rows, np.float32)
            result, outputs = instance.infer({"x": x}, {"x": x})
            assert result.failures == []
            assert [array.tolist() for array in outputs["y"]] == [(x * 2).tolist()] * 2
            assert 0 < result.compute_start_ns <= result.compute_end_ns

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt("no"), GeneratorExit()])
    def test_after_any_exception_the_next_batch_is_served(self, serve, error):
        calls = []

        def once(requests):
            calls.append(1)
            return double(requests) if len(calls) > 1 else failing(error)(requests)

        _, instance = serve(once)
        result, outputs = instance.infer({"x": X})

        (failure,) = result.failures
        assert failure.request == -1
        assert failure.message.startswith(f"model 'm': {type(error).__name__}")
        assert outputs == {}
        assert instance.infer({"x": X})[1]["y"][0].tolist() == (X * 2).tolist()

    def test_an_unrecoverable_error_is_reported_after_its_response(self, serve):
        reported = []
        error = PyTritonUnrecoverableError("gone")
        _, instance = serve(failing(error), reported.append)
        result, _ = instance.infer({"x": X})

        assert result.failures[0].message == "model 'm': PyTritonUnrecoverableError: gone"
        instance.notify({"x": X})  # the worker continues, until it is stopped
        instance.response([1])
        assert reported[0] is error

    def test_inputs_are_released_once_the_result_is_sent(self, serve):
        _, instance = serve(double)
        for _ in range(3):
            instance.infer({"x": X})
            gc.collect()

        # The worker may still hold the one that it has just served.
        assert instance.connection.arena.in_use() <= 1

    def test_two_instances_of_one_callable_take_turns(self, wire):
        running, most = [], []

        def infer(requests):
            running.append(1)
            most.append(len(running))
            threading.Event().wait(0.01)
            running.pop()
            return double(requests)

        one, other = wire(), wire()
        worker = Worker(infer, one.signature)
        instances = [Instance(one, worker), Instance(other, worker)]
        assert worker.connections == 2
        for _ in range(4):
            for instance in instances:
                instance.notify({"x": X})
            for instance in instances:
                instance.response([1])
        for instance in instances:
            instance.channel.close()
        worker.close(TIMEOUT_S)

        assert max(most) == 1

    def test_the_thread_of_a_disconnected_instance_ends(self, serve):
        worker, instance = serve(double)
        (thread,) = [each for each in threading.enumerate() if each.name == "pytriton-worker-m"]

        instance.channel.close()

        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert worker.connections == 0

    def test_closing_waits_for_the_batch_that_is_being_served(self, serve):
        entered, gate, ended = threading.Event(), threading.Event(), threading.Event()

        def slow(requests):
            entered.set()
            assert gate.wait(TIMEOUT_S)
            ended.set()
            return double(requests)

        worker, instance = serve(slow)
        instance.notify({"x": X})
        assert entered.wait(TIMEOUT_S)
        worker.close(0.01)
        assert not ended.is_set()

        gate.set()
        worker.close(TIMEOUT_S)
        assert ended.is_set()

    def test_a_closed_worker_accepts_no_more_instances(self, wire):
        connection = wire()
        worker = Worker(double, connection.signature)
        worker.close(0)
        ours, theirs = channels()
        files = psutil.Process().num_fds()

        worker.serve(theirs, os.dup(connection.arena.fd))

        with pytest.raises(EOFError):
            ours.receive()
        assert psutil.Process().num_fds() <= files
        ours.close()

    @pytest.mark.parametrize("gpu_memory", [-1, 64, 1 << 62], ids=["before", "nothing", "behind"])
    def test_unavailable_gpu_memory_is_not_used(self, wire, gpu_memory, monkeypatch):
        monkeypatch.setattr(device_arena, "_refusal", None)  # which is for the whole process
        connection = wire()
        worker = Worker(double, connection.signature)
        ours, theirs = channels()
        thread = threading.Thread(
            target=worker.serve, args=(theirs, os.dup(connection.arena.fd)), kwargs={"gpu_memory": gpu_memory}
        )
        thread.start()

        notification, *_ = ours.receive_fds()
        assert (notification.kind, notification.size) == (NotificationKind.WELCOME, 0)
        ours.close()
        worker.close(TIMEOUT_S)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()

    @pytest.mark.parametrize("doorbell", [-1, 1 << 62], ids=["before", "behind"])
    def test_an_instance_with_an_invalid_doorbell_is_disconnected(self, wire, doorbell):
        connection = wire()
        worker = Worker(double, connection.signature)
        ours, theirs = channels()

        worker.serve(theirs, os.dup(connection.arena.fd), doorbell=doorbell)

        assert ours.receive_fds()[0].kind == NotificationKind.WELCOME
        with pytest.raises(EOFError):
            ours.receive()
        assert worker.connections == 0
        worker.close(TIMEOUT_S)
        ours.close()

    @pytest.mark.parametrize("doorbell", [-1, 1 << 62], ids=["before", "behind"])
    def test_an_instance_of_a_coroutine_with_an_invalid_doorbell_is_disconnected(self, wire, doorbell):
        async def infer(requests):
            return []

        connection = wire()
        loop = EventLoop("pytriton-loop-m")
        worker = Worker(infer, connection.signature, loop=loop)
        ours, theirs = channels()

        worker.serve(theirs, os.dup(connection.arena.fd), doorbell=doorbell)

        assert ours.receive_fds()[0].kind == NotificationKind.WELCOME
        with pytest.raises(EOFError):
            ours.receive()
        wait_until(lambda: worker.connections == 0)
        worker.close(TIMEOUT_S)
        loop.stop()
        wait_until(lambda: "pytriton-loop-m" not in [thread.name for thread in threads()])
        ours.close()

    def test_an_instance_that_gets_no_memory_leaves_no_thread_and_no_descriptor(self, wire, monkeypatch):
        async def infer(requests):
            return []

        def fail(*_):
            raise OSError(errno.EMFILE, "Too many open files")

        connection = wire()
        loop = EventLoop("pytriton-loop-m")
        worker = Worker(infer, connection.signature, loop=loop)
        files = psutil.Process().num_fds()
        for name in ("memfd_create", "ftruncate"):
            ours, theirs = channels()
            with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many"):
                peer_fd = os.dup(connection.arena.fd)
                patch.setattr(os, name, fail)
                worker.serve(theirs, peer_fd)
            ours.close()
            theirs.close()

        loop.retire()

        wait_until(lambda: "pytriton-loop-m" not in [thread.name for thread in threads()])
        gc.collect()  # the other side's memory, which the exception's traceback refers to
        assert psutil.Process().num_fds() <= files
        worker.close(TIMEOUT_S)

    def test_the_wait_for_a_batch_depends_on_the_size_of_the_last_one(self, serve, monkeypatch):
        receive = Channel.receive
        seen = []

        def watched(channel, batch_size=0):
            seen.append((channel, batch_size))
            return receive(channel, batch_size)

        monkeypatch.setattr(Channel, "receive", watched)
        _, instance = serve(double)
        for requests in (1, 3, 2):
            instance.infer(*[{"x": X}] * requests)

        def known():
            return [batch_size for channel, batch_size in seen if channel is not instance.channel]

        wait_until(lambda: known()[-2:] == [2, 0])  # 0: no instance has connected for a second
        assert [batch_size for batch_size in known() if batch_size] == [1, 3, 2]

    def test_an_unknown_notification_closes_the_connection(self, serve):
        _, instance = serve(double)
        instance.channel.send(Notification(99, 1, 0, 0))

        with pytest.raises(EOFError):
            next_notification(instance.channel)
