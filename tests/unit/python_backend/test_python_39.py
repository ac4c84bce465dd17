"""Everything that a worker process loads runs under Python 3.9, with only NumPy."""

from __future__ import annotations

import ast
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
from wiring import TIMEOUT_S, Wire, next_notification

import pytriton
from pytriton.proxy.transport.arena import PeerArena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.control_channel import ControlChannel
from pytriton.proxy.wire.control import Command, CommandMessage, decode_reply, encode_command
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.python_backend.declaration import signature_of

PACKAGE = pathlib.Path(pytriton.__file__).parent
FILES = [
    PACKAGE / "exceptions.py",
    *sorted((PACKAGE / "python_backend").rglob("*.py")),
    *sorted((PACKAGE / "model_config").glob("*.py")),
    *sorted((PACKAGE / "proxy").rglob("*.py")),
]

MODEL = """
    import sys

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            version = np.full((1, 1), sys.version_info[0] * 100 + sys.version_info[1], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", version)]) for _ in requests]

        def finalize(self):
            print("finalized")
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_its_syntax_is_that_of_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.fixture(scope="module")
def python_39(tmp_path_factory):
    """An interpreter of Python 3.9 with NumPy and nothing else."""
    found = sorted(pathlib.Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python"))
    if not found:
        pytest.skip("there is no Python 3.9")
    folder = tmp_path_factory.mktemp("python_39")
    target = ["--target", folder / "lib" / "python3.9" / "site-packages"]
    wheels = ["--no-compile", "--disable-pip-version-check", "--python-version", "3.9", "--only-binary=:all:"]
    install = [sys.executable, "-m", "pip", "install", "-q", *target, *wheels, "numpy"]
    for command in ([found[-1], "-m", "venv", "--without-pip", folder], install):  # its own pip takes longer than NumPy
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            pytest.skip(f"NumPy cannot be installed for Python 3.9: {done.stderr[-500:]}")
    return folder / "bin" / "python"


def send_request(control, message):
    control.send(encode_command(message))
    reply = decode_reply(control.receive(TIMEOUT_S))
    assert (reply.error, reply.detail) == ("", "")
    return reply


@pytest.mark.parametrize("interpreter", ["this one", "3.9"])
def test_a_worker_process_serves_a_model(repository, request, interpreter):
    python = sys.executable if interpreter == "this one" else request.getfixturevalue("python_39")
    command = repository(MODEL)
    ours, theirs = socket.socketpair()
    program = [
        "bash",
        "-c",
        f'exec 3<&{theirs.fileno()} && exec "$@"',
        "-",
        python,
        PACKAGE / "python_backend" / "bootstrap.py",
    ]
    process = subprocess.Popen(program, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
    theirs.close()
    control = ControlChannel(ours)
    command.command = Command.COMPLETE_CONFIG
    assert send_request(control, command).config == command.config
    command.command = Command.LOAD
    send_request(control, command)
    send_request(control, CommandMessage(Command.CHECK_READY))
    admission = send_request(control, CommandMessage(Command.ISSUE_TICKET)).admission
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(admission.socket)
    channel = Channel(connected)
    connection = Wire.of(signature_of(command.config, 1))
    channel.send(Notification(NotificationKind.HELLO, admission.ticket, 0, 0), connection.arena.fd)
    _, fd, _ = channel.receive_fds()
    results = PeerArena(fd)
    offset, size = connection.lay_down([{"x": np.ones((1, 1), np.float32)}])
    channel.send(Notification(NotificationKind.BATCH, 1, offset, size))
    notification = next_notification(channel)
    _, outputs = connection.read_result(
        results.lease(notification.offset, notification.size).tobytes(), 0, notification.size, [1]
    )
    wanted = sys.version_info[0] * 100 + sys.version_info[1] if interpreter == "this one" else 309
    assert outputs["y"][0].tolist() == [[wanted]]
    send_request(control, CommandMessage(Command.STOP))
    assert process.communicate(timeout=TIMEOUT_S)[0] == "finalized\n"
    assert process.returncode == 0
    channel.close()
    control.close()
    connection.close()
