"""A worker, its channel and the registry, driven like by a model instance."""

from __future__ import annotations

import gc
import os
import pathlib
import socket
import tempfile
import threading

import numpy as np
import psutil
import pytest
import zmq
from peer_codecs import encode_registration
from wiring import TIMEOUT_S, Instance, channels, next_notification, wait_until

from pytriton.exceptions import PyTritonBadParameterError, PyTritonUnrecoverableError
from pytriton.model_config import ModelConfig
from pytriton.proxy.registry import AdmissionStatus, Registry
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.wire.notification import PROTOCOL_VERSION, Notification, NotificationKind
from pytriton.proxy.wire.registration import (
    AdmissionMessage,
    ExecutionMode,
    RegistrationMessage,
    decode_admission,
)
from pytriton.proxy.worker.worker import Worker

X = np.ones((1, 3), np.float32)


class TestChannel:
    def test_bells_arrive_in_order(self):
        ours, theirs = channels()
        notifications = [Notification(NotificationKind.BATCH, number, -number, 2**62) for number in range(5)]
        for notification in notifications:
            ours.send(notification)

        assert [theirs.receive() for _ in notifications] == notifications
        ours.close()
        theirs.close()

    def test_a_file_descriptor_travels_along(self, tmp_path):
        ours, theirs = channels()
        with (tmp_path / "file").open("w+b") as file:
            file.write(b"content")
            file.flush()
            ours.send(Notification(NotificationKind.HELLO, 1, 2, 3), file.fileno())
        notification, fd, _ = theirs.receive_fds()

        assert notification == (NotificationKind.HELLO, 1, 2, 3)
        assert os.pread(fd, 10, 0) == b"content"
        os.close(fd)
        ours.close()
        theirs.close()

    def test_the_end_of_the_other_side_is_told(self):
        ours, theirs = channels()
        theirs.close()

        with pytest.raises(EOFError):
            ours.receive()
        with pytest.raises(OSError, match="pipe"):
            ours.send(Notification(NotificationKind.BATCH, 1, 0, 0))
        ours.close()

    def test_closing_wakes_who_waits(self):
        ours, theirs = channels()
        ended = threading.Event()

        def wait():
            with pytest.raises(EOFError):
                while ours.receive() is None:
                    pass
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        ours.close()

        assert ended.wait(0.9), "before its timeout"
        thread.join()
        theirs.close()

    def test_silence_is_told_as_none(self):
        ours, theirs = channels()

        assert ours.receive() is None
        ours.close()
        theirs.close()

    def test_what_is_no_bell_ends_the_conversation(self):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(right)
        left.send(b"short")
        with pytest.raises(EOFError):
            channel.receive()
        left.send(b"x" * 32)
        with pytest.raises(EOFError):
            channel.receive_fds()
        left.close()
        channel.close()


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
    def test_it_welcomes_an_instance_with_its_arena(self, serve):
        worker, instance = serve(double)

        assert instance.welcome.kind == NotificationKind.WELCOME
        assert worker.connections == 1

    def test_it_answers_batches_in_turn(self, serve):
        _, instance = serve(double)

        for rows in (1, 3, 2):
            x = np.full((rows, 2), rows, np.float32)
            result, outputs = instance.infer({"x": x}, {"x": x})
            assert result.failures == []
            assert [array.tolist() for array in outputs["y"]] == [(x * 2).tolist()] * 2
            assert 0 < result.compute_start_ns <= result.compute_end_ns

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt("no"), GeneratorExit()])
    def test_whatever_is_raised_is_answered_and_the_next_batch_too(self, serve, error):
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

    def test_an_unrecoverable_error_is_told_once_it_is_answered(self, serve):
        told = []
        error = PyTritonUnrecoverableError("gone")
        _, instance = serve(failing(error), told.append)
        result, _ = instance.infer({"x": X})

        assert result.failures[0].message == "model 'm': PyTritonUnrecoverableError: gone"
        instance.notify({"x": X})  # the worker goes on, until it is stopped
        instance.response([1])
        assert told[0] is error

    def test_inputs_are_released_once_the_batch_is_answered(self, serve):
        _, instance = serve(double)
        for _ in range(3):
            instance.infer({"x": X})
            gc.collect()

        # The worker may still hold the one that it has just answered.
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

    def test_an_instance_that_leaves_ends_its_thread(self, serve):
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

    def test_a_closed_worker_takes_no_more_instances(self, wire):
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

    @pytest.mark.parametrize("doorbell", [-1, 1 << 62], ids=["before", "behind"])
    def test_an_instance_whose_doorbell_is_not_in_its_arena_is_disconnected(self, wire, doorbell):
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

    def test_whoever_waits_for_a_batch_knows_how_many_clients_came_together_before(self, serve, monkeypatch):
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

        wait_until(lambda: known()[-2:] == [2, 0])  # 0: nobody has come for a second
        assert [batch_size for batch_size in known() if batch_size] == [1, 3, 2]

    def test_a_bell_that_it_does_not_know_ends_the_connection(self, serve):
        _, instance = serve(double)
        instance.channel.send(Notification(99, 1, 0, 0))

        with pytest.raises(EOFError):
            next_notification(instance.channel)


@pytest.fixture
def folder():
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pt-") as path:
        yield pathlib.Path(path)


@pytest.fixture
def registry(folder):
    registry = Registry(folder)
    yield registry
    registry.close()


def send_request(registry, *frames):
    with zmq.Context() as context, context.socket(zmq.REQ) as question:
        question.setsockopt(zmq.LINGER, 0)
        question.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        question.connect(registry.endpoint)
        question.send_multipart(frames)
        return question.recv_multipart()


def register(registry, binding="b", instance="m_0_0"):
    body = encode_registration(RegistrationMessage(binding, "m", 1, instance, "{}"))
    return send_request(registry, b"pytriton", str(PROTOCOL_VERSION).encode(), body)


def admitted(registry, binding="b", instance="m_0_0"):
    verdict, body = register(registry, binding, instance)
    assert verdict == b"admitted", body
    return decode_admission(body)


class TestRegistry:
    def test_an_instance_is_told_where_its_worker_is_and_what_the_model_has(self, registry, wire, folder):
        registry.add("b", [Worker(double, wire().signature)])

        admission = admitted(registry)

        assert admission.socket == str(folder / "workers")
        assert admission.batching is True
        assert (admission.inputs, admission.outputs) == (["x", "w"], ["y", "z"])

    def test_an_instance_is_told_how_many_batches_its_worker_takes(self, registry, wire):
        async def infer(requests):
            return requests

        def steps(requests):
            yield requests

        for decoupled, infer_func, max_in_flight in [(False, double, 1), (False, infer, 256), (True, steps, 5)]:
            signature = wire(config=ModelConfig(decoupled=decoupled, max_in_flight=5 if decoupled else None)).signature
            registry.add("b", [Worker(infer_func, signature)])
            admission = admitted(registry)
            assert (admission.decoupled, admission.max_in_flight) == (decoupled, max_in_flight)

    def test_an_instance_with_a_ticket_is_served(self, registry, wire):
        connection = wire()
        worker = Worker(double, connection.signature)
        registry.add("b", [worker])
        admission = admitted(registry)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.connect(admission.socket)
            channel = Channel(connected)
            channel.send(Notification(NotificationKind.HELLO, admission.ticket, 0, 0), connection.arena.fd)
            notification, fd, _ = channel.receive_fds()
            os.close(fd)
            assert notification.kind == NotificationKind.WELCOME
            assert worker.connections == 1
        worker.close(TIMEOUT_S)

    def test_an_instance_for_which_no_thread_can_be_started_is_disconnected_and_others_are_served(
        self, registry, monkeypatch, caplog
    ):
        def start(thread):
            raise RuntimeError("can't start new thread")

        def is_connected():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
                connected.connect(str(registry.folder / "workers"))
                connected.settimeout(0.2)
                try:
                    return connected.recv(1) != b""
                except TimeoutError:
                    return True

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            assert not is_connected()
        assert "A model instance cannot be accepted: can't start new thread" in caplog.text
        assert is_connected()

    @pytest.mark.parametrize("ticket", [0, -1, 12345])
    def test_an_instance_without_a_ticket_is_refused(self, registry, wire, ticket):
        connection = wire()
        registry.add("b", [Worker(double, connection.signature)])
        admission = admitted(registry)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.connect(admission.socket)
            channel = Channel(connected)
            channel.send(Notification(NotificationKind.HELLO, ticket, 0, 0), connection.arena.fd)
            with pytest.raises(EOFError):
                next_notification(channel)

    def test_instances_are_spread_over_the_workers(self, registry, wire):
        workers = [Worker(double, wire().signature) for _ in range(3)]
        registry.add("b", workers)

        tickets = [admitted(registry, instance=f"m_0_{number}").ticket for number in (2, 0, 1, 3)]

        assert [registry._listener._tickets[ticket] for ticket in tickets] == [workers[each] for each in (2, 0, 1, 0)]

    def test_an_instance_is_told_how_its_workers_process_is(self, registry):
        admission = AdmissionMessage("socket", 7, True, False, ExecutionMode.SEQUENTIAL, 1, ["x"], ["y"])
        standings = [
            AdmissionStatus(admission, 3),
            AdmissionStatus(None, 0, "soon", waiting=True),
            AdmissionStatus(None, 0, "never"),
        ]

        class Distant:
            def issue_ticket(self):
                return standings.pop(0)

        registry.add("b", [Distant()])

        verdict, body, restarts = register(registry)
        assert (verdict, decode_admission(body), restarts) == (b"admitted", admission, b"3")
        assert register(registry) == [b"waiting", b"soon"]
        assert register(registry) == [b"refused", b"never"]

    def test_a_model_that_is_not_bound_is_refused(self, registry, wire):
        assert register(registry)[0] == b"refused"

        registry.add("b", [Worker(double, wire().signature)])
        assert register(registry)[0] == b"admitted"

        registry.remove("b")
        verdict, reason = register(registry)
        assert verdict == b"refused"
        assert b"model 'm' is no longer bound" in reason

    def test_another_version_is_refused_with_both(self, registry):
        verdict, reason = send_request(registry, b"pytriton", b"77", b"?")

        assert verdict == b"refused"
        assert f"version 77 of the proxy protocol, the pytriton package version {PROTOCOL_VERSION}" in reason.decode()

    @pytest.mark.parametrize("frames", [[b""], [b"pytriton"], [b"other", b"1", b""], [b"pytriton", b"1", b"\x01" * 40]])
    def test_nonsense_is_refused(self, registry, frames):
        assert send_request(registry, *frames)[0] == b"refused"

    def test_closing_leaves_nothing(self, folder):
        before = psutil.Process().num_fds()
        for _ in range(3):
            Registry(folder).close()

        assert not (folder / "workers").exists()
        assert psutil.Process().num_fds() <= before + 2  # what ZeroMQ keeps for itself

    def test_a_folder_whose_path_is_too_long_is_refused(self, folder):
        with pytest.raises(PyTritonBadParameterError, match=r"too long for a socket.*PYTRITON_HOME"):
            Registry(folder / ("x" * 100))
