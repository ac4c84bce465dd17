"""The registry, as model instances see it."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import time
import types

import psutil
import pytest
import zmq
from peer_codecs import encode_registration
from wiring import TIMEOUT_S, next_notification, wait_until

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
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


def double(requests):
    return [[request["x"] * 2, request["x"]] for request in requests]


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
    with zmq.Context() as context, context.socket(zmq.REQ) as request:
        request.setsockopt(zmq.LINGER, 0)
        request.setsockopt(zmq.RCVTIMEO, TIMEOUT_S * 1000)
        request.connect(registry.endpoint)
        request.send_multipart(frames)
        return request.recv_multipart()


def register(registry, binding="b", instance="m_0_0"):
    body = encode_registration(RegistrationMessage(binding, "m", 1, instance, "{}"))
    return send_request(registry, b"pytriton", str(PROTOCOL_VERSION).encode(), body)


def admitted(registry, binding="b", instance="m_0_0"):
    verdict, body = register(registry, binding, instance)
    assert verdict == b"admitted", body
    return decode_admission(body)


class TestRegistry:
    def test_an_admission_has_the_workers_address_and_the_models_tensors(self, registry, wire, folder):
        registry.add("b", [Worker(double, wire().signature)])

        admission = admitted(registry)

        assert admission.socket == str(folder / "workers")
        assert admission.batching is True
        assert (admission.inputs, admission.outputs) == (["x", "w"], ["y", "z"])

    def test_an_admission_has_the_number_of_batches_in_flight(self, registry, wire):
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

    def test_an_instance_without_a_thread_is_disconnected_and_others_are_served(self, registry, monkeypatch, caplog):
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

    def test_an_instance_without_memory_is_disconnected_and_others_are_served(
        self, registry, wire, monkeypatch, caplog
    ):
        def no_files():
            raise OSError(errno.EMFILE, "Too many open files")

        def welcome():
            admission = admitted(registry)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
                connected.connect(admission.socket)
                channel = Channel(connected)
                channel.send(Notification(NotificationKind.HELLO, admission.ticket, 0, 0), connection.arena.fd)
                return next_notification(channel)

        connection = wire()
        worker = Worker(double, connection.signature)
        registry.add("b", [worker])
        with monkeypatch.context() as patched:
            patched.setattr("pytriton.proxy.worker.connected_instance.Arena", no_files)
            with pytest.raises(EOFError):
                welcome()
        assert "A model instance cannot be served: [Errno 24] Too many open files" in caplog.text
        assert welcome().kind == NotificationKind.WELCOME
        worker.close(TIMEOUT_S)

    @pytest.mark.parametrize("name", ["workers", "controller"])
    def test_the_thread_does_not_busy_wait_while_no_file_can_be_opened(self, registry, monkeypatch, name):
        times = []

        def accept(_):
            times.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", accept)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.connect(str(registry.folder / name))
            wait_until(lambda: len(times) > 3)
        assert times[3] - times[0] > 0.1

    def test_a_deleted_folder_is_named(self, registry, wire, folder):
        shutil.rmtree(folder)

        with pytest.raises(PyTritonRuntimeError, match=f"{folder}' has been deleted"):
            registry.add("b", [Worker(double, wire().signature)])
        folder.mkdir()  # for the fixture

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

    def test_a_registration_reports_the_state_of_the_workers_process(self, registry):
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
        assert register(registry) == [b"failed", b"never"]

    def test_a_model_that_is_not_bound_is_refused(self, registry, wire):
        assert register(registry)[0] == b"refused"

        registry.add("b", [Worker(double, wire().signature)])
        assert register(registry)[0] == b"admitted"

        registry.remove("b")
        verdict, reason = register(registry)
        assert verdict == b"refused"
        assert b"model 'm' is no longer bound" in reason

    def test_another_protocol_version_is_refused_with_both_versions(self, registry):
        verdict, reason = send_request(registry, b"pytriton", b"77", b"?")

        assert verdict == b"refused"
        assert f"version 77 of the proxy protocol, the pytriton package version {PROTOCOL_VERSION}" in reason.decode()

    @pytest.mark.parametrize("frames", [[b""], [b"pytriton"], [b"other", b"1", b""], [b"pytriton", b"1", b"\x01" * 40]])
    def test_malformed_registrations_are_refused(self, registry, frames):
        assert send_request(registry, *frames)[0] == b"refused"

    def test_closing_leaves_no_thread_and_no_socket(self, folder):
        before = psutil.Process().num_fds()
        for _ in range(3):
            Registry(folder).close()

        assert not (folder / "workers").exists()
        assert psutil.Process().num_fds() <= before + 2  # what ZeroMQ keeps for itself

    def test_a_folder_whose_path_is_too_long_is_refused(self, folder):
        with pytest.raises(PyTritonBadParameterError, match=r"too long for a socket.*PYTRITON_HOME"):
            Registry(folder / ("x" * 100))


def test_greenlets_of_eventlet_in_place_of_threads_are_refused(folder, monkeypatch):
    patcher = types.SimpleNamespace(is_monkey_patched=lambda name: name == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with pytest.raises(PyTritonRuntimeError, match="eventlet has replaced the threads of this program by greenlets"):
        Registry(folder)
