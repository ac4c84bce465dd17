"""Messages of a worker process's control channel. Counterpart of ``backend/wire/control.h``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pytriton.proxy.wire.encoding import MessageReader, MessageWriter
from pytriton.proxy.wire.registration import AdmissionMessage, decode_admission, encode_admission


class Command(enum.IntEnum):
    """A command to a worker process."""

    COMPLETE_CONFIG = 1
    LOAD = 2
    ISSUE_TICKET = 3
    STOP = 4
    CHECK_READY = 5
    STATUS = 6
    END_STREAMS = 7
    RETIRE = 8


HAS_READINESS_CHECK = "is_ready"
"""The configuration in the reply to LOAD if the model has its own readiness check."""


@dataclass
class CommandMessage:
    """A command from the supervisor to the process.

    Attributes:
        command: COMPLETE_CONFIG completes ``config``; LOAD creates the inference callable; ISSUE_TICKET admits one
            model instance; STOP shuts the process down; CHECK_READY checks whether the model can infer; STATUS queries
            how busy the process is; END_STREAMS ends running coroutines and generators; RETIRE shuts the process down
            once no model instance is connected. All other fields belong to the first two commands.
        folder: Where the process may create its sockets, in a folder of mode 0700.
        model: The model's name.
        version: The model's version.
        instance: The instance's name.
        config: The model's configuration, as JSON.
        repository: The model's folder; empty for bound models.
        backend: The folder of the Python-based backend that serves the model; empty for a model with its own code.
        instance_kind: ``CPU`` or ``GPU``.
        device_id: The instance's device.
        payload: The factory of a bound model, pickled; empty for models of a repository.
    """

    command: Command
    folder: str = ""
    model: str = ""
    version: int = 0
    instance: str = ""
    config: str = ""
    repository: str = ""
    backend: str = ""
    instance_kind: str = ""
    device_id: str = ""
    payload: bytes = b""


@dataclass
class CommandReply:
    """A reply from the process to its supervisor.

    Attributes:
        error: Why the command failed, in one sentence; empty if it succeeded.
        detail: The traceback of the error, if any.
        config: After COMPLETE_CONFIG, the completed configuration as JSON. After LOAD, ``HAS_READINESS_CHECK`` or
            empty.
        admission: Where the instance is to connect and how it is served; after ISSUE_TICKET.
        unrecoverable: The message of a PyTritonUnrecoverableError that the inference callable raised. Such a reply, and
            no other, is sent without a command.
        connections: Number of connected model instances; after STATUS.
        idle_since_ns: When the process became idle, on the monotonic clock; after STATUS.
    """

    error: str = ""
    detail: str = ""
    config: str = ""
    admission: AdmissionMessage | None = field(default=None)
    unrecoverable: str = ""
    connections: int = 0
    idle_since_ns: int = 0


def encode_command(message: CommandMessage) -> bytes:
    """Encodes a command."""
    writer = MessageWriter()
    writer.words.append(message.command)
    for text in (message.folder, message.model):
        writer.text(text)
    writer.words.append(message.version)
    for text in (message.instance, message.config, message.repository, message.backend):
        writer.text(text)
    for text in (message.instance_kind, message.device_id):
        writer.text(text)
    return writer.to_bytes() + message.payload


def decode_command(data: bytes) -> CommandMessage:
    """Decodes a command."""
    reader = MessageReader(data, 0, len(data))
    command = Command(reader.word())
    folder, model, version = reader.text(), reader.text(), reader.word()
    instance, config, repository, backend, kind, device = (reader.text() for _ in range(6))
    payload = data[reader.data_offset :]
    return CommandMessage(command, folder, model, version, instance, config, repository, backend, kind, device, payload)


def encode_reply(message: CommandReply) -> bytes:
    """Encodes a reply; the admission becomes the message's data."""
    writer = MessageWriter()
    for text in (message.error, message.detail, message.config, message.unrecoverable):
        writer.text(text)
    writer.words += (message.connections, message.idle_since_ns)
    return writer.to_bytes() + (b"" if message.admission is None else encode_admission(message.admission))


def decode_reply(data: bytes) -> CommandReply:
    """Decodes a reply."""
    reader = MessageReader(data, 0, len(data))
    error, detail, config, unrecoverable = (reader.text() for _ in range(4))
    connections, idle_since_ns = reader.word(), reader.word()
    data = data[reader.data_offset :]
    admission = decode_admission(data) if data else None
    return CommandReply(error, detail, config, admission, unrecoverable, connections, idle_since_ns)
