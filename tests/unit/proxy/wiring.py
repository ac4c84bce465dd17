"""Batches as the server sends them, and model instances, without a server."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time

import numpy as np
from peer_codecs import decode_responses, decode_result, encode_batch

from pytriton.model_config.datatypes import BYTES_CODE, CODE_BY_DTYPE, DTYPE_BY_CODE
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.result import ResultWriter
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.doorbell import _FUTEX, _FUTEX_WAIT, DOORBELL_SIZE, Doorbell, _syscall
from pytriton.proxy.wire.encoding import ABSENT, MessageReader, TensorColumn, aligned
from pytriton.proxy.wire.encoding import TensorLocation as Place
from pytriton.proxy.wire.inference import BatchMessage, ResponseEntry
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.wire.registration import ExecutionMode

CAPACITY = 1 << 26
TIMEOUT_S = 20
TIMES = (1_000, 2_000)


def packed(array):
    """An array's bytes as they lie in shared memory."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    items = array.ravel().tolist()
    return np.array([len(item) for item in items], np.uint32).tobytes() + b"".join(items)


def _wait(word, value, timeout_s):
    """Sleeps while the word at an address has a value."""
    timeout = (ctypes.c_int64 * 2)(timeout_s, 0)
    _syscall(_FUTEX, word, _FUTEX_WAIT, value, timeout)


class BackendsDoorbell:
    """The backend's side of a doorbell."""

    def __init__(self, arena):
        self.arena = arena
        self.offset = arena.allocate(DOORBELL_SIZE)
        memory = PeerArena(os.dup(arena.fd)).memory
        both = memoryview(memory)[self.offset : self.offset + DOORBELL_SIZE]
        both[:] = bytes(DOORBELL_SIZE)
        self.words = both.cast("I")
        self._notifications = both.cast("q")
        self._workers = Doorbell(memory, self.offset, 0.2)

    def notify(self):
        self._workers.wake()

    def notify_of(self, sequence, offset, size, kind=NotificationKind.BATCH):
        """Notifies the worker of a batch."""
        self._notifications[1], self._notifications[2], self._notifications[4], self._notifications[3] = (
            offset,
            size,
            kind,
            sequence,
        )
        self.notify()

    def count(self):
        """Counts a notification that is sent otherwise."""
        self.words[0] += 1

    @property
    def acknowledged(self):
        """The number of notifications that the worker has acknowledged."""
        return self.words[17]

    @property
    def is_read(self):
        return self.acknowledged == self.words[0]

    def wait_for_acknowledgement(self):
        """Sleeps until the worker acknowledges a notification, the first one, as long as a test may take."""
        _wait(self._workers._own + 68, 0, TIMEOUT_S)

    @property
    def notification_count(self):
        """The number of notifications from the worker."""
        return self.words[16]

    @property
    def result(self):
        """The worker's last notification."""
        offset, size, sequence = self._notifications[9:12]
        return Notification(NotificationKind.RESULT, sequence, offset, size)


class Wire:
    """Both sides of a connection: lays batches down as the backend does, and reads results as it does.

    Args:
        inputs: A model's inputs.
        outputs: Its outputs.
        config: Its settings.
    """

    def __init__(self, inputs, outputs, config=None, strict=False):
        self._connect(Signature(ModelSpec.create("m", inputs, outputs, config=config, strict=strict)))

    @classmethod
    def of(cls, signature):
        """The same for a model that is declared elsewhere."""
        wire = cls.__new__(cls)
        wire._connect(signature)
        return wire

    def _connect(self, signature):
        self.signature = signature
        self.arena = Arena(CAPACITY)
        self.peer = PeerArena(os.dup(self.arena.fd))
        self.results = Arena(CAPACITY)
        self.writer = ResultWriter(signature)
        self._flags = {}

    def close(self):
        self.arena.close()
        self.results.close()

    def lay_down(self, requests, metadata=()):
        """Writes requests (dictionaries of arrays) into the arena, and returns where their message lies."""
        datas = bytearray(aligned(len(requests)))  # whether they are cancelled, and then the tensors
        columns = []
        for position, name in enumerate(self.signature.inputs):
            arrays = [request.get(name) for request in requests]
            present = [array for array in arrays if array is not None]
            if not present:
                continue
            stacked = len(present) == len(arrays) and (
                len(arrays) == 1 or (self.signature.batching and len({array.shape[1:] for array in arrays}) == 1)
            )
            groups = [arrays] if stacked else [[array] for array in arrays]
            tensors = []
            for group in groups:
                if group[0] is None:
                    tensors.append(ABSENT)
                    continue
                whole = np.concatenate(group) if len(group) > 1 else group[0]
                data = packed(whole)
                tensors.append(Place(len(datas), len(data), whole.shape or (1,)))
                datas += data.ljust(aligned(len(data)), b"\0")
            columns.append(TensorColumn(position, CODE_BY_DTYPE[present[0].dtype], stacked, tensors))
        rows = [len(next(iter(request.values()))) for request in requests] if self.signature.batching else []
        message = encode_batch(BatchMessage(len(requests), rows, columns, list(metadata))).to_bytes()
        offset = self.arena.allocate(len(message) + len(datas))
        start = offset + len(message)
        self.arena.memory[offset:start] = message
        self.arena.memory[start : start + len(datas)] = bytes(datas)
        self._flags[offset] = self._data = start
        return offset, len(message) + len(datas)

    def cancel(self, offset, request):
        """Says of a request of the batch at ``offset`` that it is cancelled."""
        self.arena.memory[self._flags[offset] + request] = 1

    def batch(self, *requests, metadata=()):
        """Requests as the worker gets them."""
        return self.batch_at(*self.lay_down(requests, metadata))

    def batch_at(self, offset, size):
        """The batch whose message lies there, as the worker gets it."""
        return Batch(self.peer.lease(offset, size), self.signature)

    def read_result(self, memory, offset, size, rows=(), batch_offset=None):
        """A result's failures, and its outputs by name: a list with the array (or None) of each request.

        The result is that of the batch at ``batch_offset``, by default of the one that was laid down last.
        """
        batch_data = self._data if batch_offset is None else self._flags[batch_offset]
        reader = MessageReader(memoryview(memory)[offset : offset + size], 0, size)
        result = decode_result(reader)
        outputs = {}
        for column in result.columns:
            output = self.signature.outputs[column.position]
            place = (self.arena.memory, batch_data) if column.in_batch else (memory, offset + reader.data_offset)
            arrays = [
                None if tensor.offset < 0 else self.array_of(*place, tensor, column.datatype)
                for tensor in column.tensors
            ]
            if column.stacked and result.request_count > 1:
                arrays = np.split(arrays[0], np.cumsum(rows)[:-1])
            outputs[output.name] = arrays
        return result, outputs

    @staticmethod
    def array_of(memory, data, tensor, code):
        """A tensor of a message whose data starts at ``data``."""
        raw = bytes(memory[data + tensor.offset : data + tensor.offset + tensor.size])
        if code != BYTES_CODE:
            return np.frombuffer(raw, DTYPE_BY_CODE[code]).reshape(tensor.shape)
        count = int(np.prod(tensor.shape))
        ends = np.cumsum(np.frombuffer(raw, np.uint32, count)).tolist()
        items = np.empty(count, object)
        items[:] = [raw[4 * count :][start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return items.reshape(tensor.shape)


def floats(rows, columns=3, start=0):
    return np.arange(start, start + rows * columns, dtype=np.float32).reshape(rows, columns)


def result_of(connection, batch, returned):
    """What the server gets when an inference callable returns that."""
    offset, size = connection.writer.write(returned, batch, TIMES, connection.results)
    return connection.read_result(connection.results.memory, offset, size, batch.rows)


def listed(outputs):
    return {name: [None if each is None else each.tolist() for each in arrays] for name, arrays in outputs.items()}


def channels():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), Channel(theirs)


def serve_instance(worker, channel, connection, **options):
    """Has a worker serve an instance in its own thread, as the listener does."""
    arguments = channel, os.dup(connection.arena.fd)
    threading.Thread(target=worker.serve, args=arguments, kwargs=options, daemon=True).start()


def next_notification(channel):
    """Waits for the next notification."""
    for _ in range(TIMEOUT_S):
        notification = channel.receive()
        if notification is not None:
            return notification
    raise AssertionError("there was no notification")


def wait_until(condition, timeout_s=TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not come true in {timeout_s} s"
        time.sleep(0.001)


class Instance:
    """A model instance in the server, as its worker sees it.

    Args:
        connection: The wire.
        worker: The worker.
        has_doorbell: Whether there is a doorbell, through which batches are notified in sequential mode, and
            acknowledged in the others.
    """

    def __init__(self, connection, worker, has_doorbell=False):
        self.connection = connection
        self.worker = worker
        self.channel, theirs = channels()
        self.doorbell = BackendsDoorbell(connection.arena) if has_doorbell else None
        at_doorbell = {} if self.doorbell is None else {"doorbell": self.doorbell.offset}
        serve_instance(worker, theirs, connection, **at_doorbell)
        self.welcome, fd, _ = self.channel.receive_fds()
        self.results = PeerArena(fd)
        self.sequence = 0
        self.ended = set()  # pairs of a batch's sequence and a request
        self.notifications = 0  # that contained replies
        self.returned = []  # sequences of batches that the callable has returned from, and that were not ended then
        self._offsets = {}
        self._rows = {}
        self._responses = []

    def notify(self, *requests, metadata=()):
        """Sends a batch, and returns its sequence."""
        offset, size = self.connection.lay_down(requests, metadata)
        self.sequence += 1
        self._offsets[self.sequence] = offset
        self._rows[self.sequence] = [len(next(iter(request.values()))) for request in requests]
        if self.doorbell is None or self.worker.mode is not ExecutionMode.SEQUENTIAL:
            if self.doorbell is not None:
                self.doorbell.count()
            self.channel.send(Notification(NotificationKind.BATCH, self.sequence, offset, size))
        else:
            self.doorbell.notify_of(self.sequence, offset, size)
        return self.sequence

    def cancel(self, sequence, request=0):
        self.connection.cancel(self._offsets[sequence], request)

    def infer(self, *requests):
        """Sends a batch to a worker that takes one at a time, and returns its result."""
        self.notify(*requests)
        return self.response([len(request["x"]) for request in requests])

    def response(self, rows):
        if self.doorbell is None:
            notification = next_notification(self.channel)
        else:
            wait_until(lambda: self.doorbell.result.sequence == self.sequence)
            notification = self.doorbell.result
        assert (notification.kind, notification.sequence) == (NotificationKind.RESULT, self.sequence)
        lease = self.results.lease(notification.offset, notification.size)
        return self.connection.read_result(lease.tobytes(), 0, notification.size, rows)

    def wait_for_returns(self, count):
        """Waits until the callable has returned from so many batches, before it responds to any of them."""
        while len(self.returned) < count:
            notification = next_notification(self.channel)
            assert notification.kind == NotificationKind.RETURNED
            self.returned.append(notification.sequence)

    def next_response(self):
        """The next response of a worker that takes many batches at a time, and its outputs by name.

        It checks what holds of all responses: that nothing follows the final one.
        """
        while not self._responses:
            notification = next_notification(self.channel)
            if notification.kind == NotificationKind.RETURNED:
                self.returned.append(notification.sequence)
                continue
            self.notifications += 1
            for reply, outputs in self._read(notification):
                assert (reply.sequence, reply.request) not in self.ended, "a response follows the final one"
                if reply.final:
                    self.ended.add((reply.sequence, reply.request))
                self._responses.append((reply, outputs))
        return self._responses.pop(0)

    def _read(self, notification):
        """The responses to any requests, or those to all requests of a batch, each with its outputs by name."""
        memory = self.results.lease(notification.offset, notification.size).tobytes()
        if notification.kind == NotificationKind.RESULT:
            return self._read_result(memory, notification)
        assert notification.kind == NotificationKind.RESPONSES
        reader = MessageReader(memory, 0, notification.size)
        replies = decode_responses(reader).responses
        return [(reply, self._outputs(memory, reader.data_offset, reply)) for reply in replies]

    def _read_result(self, memory, notification):
        sequence = notification.sequence
        rows, batch_offset = self._rows[sequence], self._offsets[sequence]
        result, outputs = self.connection.read_result(memory, 0, notification.size, rows, batch_offset)
        times = result.compute_start_ns, result.compute_end_ns
        failures = {failure.request: failure for failure in result.failures}
        return [
            (
                ResponseEntry(sequence, request, True, request not in failures, *times, failures.get(request), []),
                {name: arrays[request] for name, arrays in outputs.items()},
            )
            for request in range(result.request_count)
        ]

    def stream(self, sequence, request=0):
        """All responses to one request, as lists of an output's values; its failure, if it has one, is the last.

        Responses to others that come in between are kept.
        """
        items, others = [], []
        while True:
            reply, outputs = self.next_response()
            if (reply.sequence, reply.request) != (sequence, request):
                others.append((reply, outputs))
                continue
            if reply.response:
                items.append(next(iter(outputs.values())).tolist())
            if reply.failure:
                items.append(reply.failure)
            if reply.final:
                self._responses = others + self._responses
                return items

    def _outputs(self, memory, data_offset, reply):
        outputs = {}
        for position, code, tensor in reply.outputs:
            output = self.connection.signature.outputs[position]
            assert code == output.code or self.connection.signature.loose
            outputs[output.name] = self.connection.array_of(memory, data_offset, tensor, code)
        return outputs
