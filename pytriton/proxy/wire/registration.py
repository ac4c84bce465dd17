"""Messages by which a model instance finds its worker. Counterpart of ``backend/wire/registration.h``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytriton.proxy.wire.encoding import MessageReader, MessageWriter, ProtocolError, encode_text, text_of


class ExecutionMode(enum.IntEnum):
    """The mode in which a worker serves batches.

    Attributes:
        SEQUENTIAL: One batch at a time; a result has the responses to all of its requests.
        CONCURRENT: Several batches at a time; each request has its own responses.
        DEFERRED: Like CONCURRENT, but a batch is sent only after the inference callable has returned from the previous
            one, whose responses may still be outstanding.
    """

    SEQUENTIAL = 1
    CONCURRENT = 2
    DEFERRED = 3


@dataclass
class RegistrationMessage:
    """Backend to registry: registers a model instance. ``config`` is the model's configuration as JSON."""

    binding: str
    model: str
    version: int
    instance: str
    config: str


@dataclass
class AdmissionMessage:
    """Registry to backend: the worker's address, and the names of the inputs and outputs by position.

    ``max_in_flight`` is the number of batches that the worker accepts at a time, 1 in sequential mode. ``gpus`` has the
    ids of the GPUs in whose memory it accepts tensors, the preferred one first.
    """

    socket: str
    ticket: int
    batching: bool
    decoupled: bool
    mode: ExecutionMode
    max_in_flight: int
    inputs: list[str]
    outputs: list[str]
    gpus: bytes = b""


def decode_registration(data: bytes) -> RegistrationMessage:
    """Decodes a registration."""
    reader = MessageReader(data, 0, len(data))
    return RegistrationMessage(reader.text(), reader.text(), reader.word(), reader.text(), reader.text())


def encode_admission(message: AdmissionMessage) -> bytes:
    """Encodes an admission."""
    writer = MessageWriter()
    writer.text(message.socket)
    writer.words += (message.ticket, int(message.batching), int(message.decoupled), message.mode, message.max_in_flight)
    writer.text(text_of(message.gpus))
    for names in (message.inputs, message.outputs):
        writer.words.append(len(names))
        for name in names:
            writer.text(name)
    return writer.to_bytes()


def decode_admission(data: bytes) -> AdmissionMessage:
    """Decodes an admission."""
    reader = MessageReader(data, 0, len(data))
    socket, ticket = reader.text(), reader.word()
    batching, decoupled = reader.word() != 0, reader.word() != 0
    mode, max_in_flight, gpus = reader.word(), reader.word(), encode_text(reader.text())
    if mode not in ExecutionMode._value2member_map_:
        raise ProtocolError(f"an admission has the unknown execution mode {mode}")
    inputs = [reader.text() for _ in range(reader.count())]
    outputs = [reader.text() for _ in range(reader.count())]
    return AdmissionMessage(
        socket, ticket, batching, decoupled, ExecutionMode(mode), max_in_flight, inputs, outputs, gpus
    )
