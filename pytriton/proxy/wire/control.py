"""Messages of the control channel between a worker process and its supervisor. Twin of ``backend/wire/control.h``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pytriton.proxy.wire.encoding import MessageReader, MessageWriter
from pytriton.proxy.wire.registration import AdmissionMessage, decode_admission, encode_admission


class Command(enum.IntEnum):
    """What the owner wants."""

    COMPLETE = 1
    LOAD = 2
    ADMIT = 3
    STOP = 4
    READY = 5
    STATUS = 6
    END_STREAMS = 7
    RETIRE = 8


HAS_READINESS_CHECK = "is_ready"
"""In place of the configuration, after LOAD: the model wants to be asked whether it can infer."""


@dataclass
class CommandMessage:
    """Owner to process.

    Attributes:
        order: COMPLETE has ``config`` completed; LOAD makes the inference callable; ADMIT asks for an admission of one
            model instance; STOP has the process end in order; READY asks whether it can infer; STATUS asks how busy it
            is; END_STREAMS ends what coroutines and generators are at; RETIRE has the process end in order once no
            model instance is connected. All other fields are for the first two alone.
        folder: Where the process may put its sockets, in a folder of mode 0700.
        model: The model's name.
        version: The model's version.
        instance: The instance's name.
        config: The model's configuration, as JSON.
        repository: The model's folder; empty for bound models.
        instance_kind: ``CPU`` or ``GPU``.
        device_id: The instance's device.
        payload: What a bound model is made of, pickled; empty for models of a repository.
    """

    command: Command
    folder: str = ""
    model: str = ""
    version: int = 0
    instance: str = ""
    config: str = ""
    repository: str = ""
    instance_kind: str = ""
    device_id: str = ""
    payload: bytes = b""


@dataclass
class CommandReply:
    """Process to owner.

    Attributes:
        error: Why the order failed, in one sentence; empty where it has not.
        detail: The traceback of that, or nothing.
        config: The completed configuration, as JSON; after COMPLETE. After LOAD, ``HAS_READINESS_CHECK`` or nothing.
        admission: Where the instance is to connect, and what serves it; after ADMIT.
        unrecoverable: What a PyTritonUnrecoverableError says that the inference callable has raised. This alone is not
            asked for, and comes between replies.
        connections: How many model instances are connected; after STATUS.
        idle_since_ns: Since when there has been nothing to do, on the monotonic clock; after STATUS.
    """

    error: str = ""
    detail: str = ""
    config: str = ""
    admission: AdmissionMessage | None = field(default=None)
    unrecoverable: str = ""
    connections: int = 0
    idle_since_ns: int = 0


def encode_command(message: CommandMessage) -> bytes:
    """An order as it travels in a frame."""
    writer = MessageWriter()
    writer.words.append(message.command)
    for text in (message.folder, message.model):
        writer.text(text)
    writer.words.append(message.version)
    for text in (message.instance, message.config, message.repository, message.instance_kind, message.device_id):
        writer.text(text)
    return writer.to_bytes() + message.payload


def decode_command(data: bytes) -> CommandMessage:
    """Reads an order."""
    reader = MessageReader(data, 0, len(data))
    command = Command(reader.word())
    folder, model, version = reader.text(), reader.text(), reader.word()
    instance, config, repository, kind, device = (reader.text() for _ in range(5))
    payload = data[reader.data_offset :]
    return CommandMessage(command, folder, model, version, instance, config, repository, kind, device, payload)


def encode_reply(message: CommandReply) -> bytes:
    """A reply as it travels in a frame; the admission is its data."""
    writer = MessageWriter()
    for text in (message.error, message.detail, message.config, message.unrecoverable):
        writer.text(text)
    writer.words += (message.connections, message.idle_since_ns)
    return writer.to_bytes() + (b"" if message.admission is None else encode_admission(message.admission))


def decode_reply(data: bytes) -> CommandReply:
    """Reads a reply."""
    reader = MessageReader(data, 0, len(data))
    error, detail, config, unrecoverable = (reader.text() for _ in range(4))
    connections, idle_since_ns = reader.word(), reader.word()
    data = data[reader.data_offset :]
    admission = decode_admission(data) if data else None
    return CommandReply(error, detail, config, admission, unrecoverable, connections, idle_since_ns)
