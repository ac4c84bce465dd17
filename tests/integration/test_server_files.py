"""A custom server, a missing server, and versions that do not match."""

from __future__ import annotations

import numpy as np
import pytest
import zmq
from serving import bind_floats, double, free_config, running_triton, send_floats, server_of, servers

import pytriton
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.proxy.wire.notification import PROTOCOL_VERSION
from pytriton.server.files import SERVER_PATH_VARIABLE, find_server
from pytriton.triton import Triton

X = np.ones((1, 1), np.float32)


@pytest.fixture
def own_server(tmp_path):
    """A folder like /opt/tritonserver, of links to the bundled server, with a backend that is not ours."""
    bundled = find_server().root
    root = tmp_path / "server"
    (root / "backends" / "other").mkdir(parents=True)
    (root / "backends" / "python").mkdir()
    (root / "bin").mkdir()
    (root / "bin" / "tritonserver").symlink_to(bundled / "bin" / "tritonserver")
    for name in ("lib", "caches"):
        (root / name).symlink_to(bundled / name)
    return root


def assert_serves(triton, root):
    bind_floats(triton, "double", double)
    triton.run()
    assert send_floats(triton, "double", [1]) == [2]
    assert server_of(triton).cmdline()[0] == str(root / "bin" / "tritonserver")
    (backends,) = (
        flag.partition("=")[2] for flag in server_of(triton).cmdline() if flag.startswith("--backend-directory=")
    )
    assert backends.startswith(str(triton._session.workspace.path))


def test_a_parameter_names_a_custom_server(own_server):
    with Triton(config=free_config(), server_path=own_server) as triton:
        assert_serves(triton, own_server)
        backends = triton._session.workspace.path / "backends"
        assert {path.name for path in backends.iterdir()} == {"other", "python", "pytriton"}
        assert (backends / "python").resolve() == find_server().backend.parent / "python"
    assert (own_server / "backends" / "other").is_dir()


def test_the_environment_names_a_custom_server(own_server, monkeypatch):
    monkeypatch.setenv(SERVER_PATH_VARIABLE, str(own_server))
    with running_triton() as triton:
        assert_serves(triton, own_server)


def test_the_parameter_overrides_the_environment(own_server, monkeypatch, tmp_path):
    monkeypatch.setenv(SERVER_PATH_VARIABLE, str(tmp_path / "nothing"))
    with Triton(config=free_config(), server_path=str(own_server)) as triton:
        assert_serves(triton, own_server)


def test_a_folder_without_a_server_is_refused_by_name(tmp_path, monkeypatch):
    message = rf"There is no Triton server in {tmp_path} \({{}}\)"
    with pytest.raises(PyTritonBadParameterError, match=message.format("server_path")):
        Triton(config=free_config(), server_path=tmp_path).run()

    monkeypatch.setenv(SERVER_PATH_VARIABLE, str(tmp_path))
    where = f"the environment variable {SERVER_PATH_VARIABLE}"
    with pytest.raises(PyTritonBadParameterError, match=message.format(where)):
        running_triton().run()
    assert not servers()


def test_a_package_without_its_server_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(pytriton, "__path__", [str(tmp_path)])
    with pytest.raises(PyTritonRuntimeError, match=r"The proxy backend is missing from .*pip install \."):
        running_triton().run()


def test_a_program_that_is_not_a_server_is_reported_with_its_last_lines(tmp_path):
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho I am no server\nexit 7\n")
    program.chmod(0o755)
    triton = Triton(config=free_config(), server_path=tmp_path)

    with pytest.raises(PyTritonRuntimeError, match=r"exited with status 7(?s:.*)I am no server"):
        triton.run()
    assert not triton.is_alive()


def test_a_server_for_another_machine_is_reported(tmp_path):
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    triton = Triton(config=free_config(), server_path=tmp_path)

    with pytest.raises(PyTritonRuntimeError, match="Exec format error"):
        triton.run()


def send_request(triton, *frames):
    """Sends a request to the registry as a backend does."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"ipc://{triton._session.workspace.path}/sockets/registry")
        socket.send_multipart(frames)
        return socket.recv_multipart()


@pytest.fixture
def own_triton():
    """A server that is looked into, so that it is no other test's."""
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        yield triton


def test_a_backend_of_another_version_is_refused_with_both_versions(own_triton):
    other = str(PROTOCOL_VERSION + 41)

    verdict, reason = send_request(own_triton, b"pytriton", other.encode(), b"whatever a later version says")

    assert verdict == b"refused"
    assert f"version {other} of the proxy protocol, the pytriton package version {PROTOCOL_VERSION}" in reason.decode()
    assert send_floats(own_triton, "double", [1]) == [2]


@pytest.mark.parametrize(
    "frames",
    [
        [b"hello"],
        [b"", b"", b""],
        [b"pytriton", str(PROTOCOL_VERSION).encode(), b""],
        [b"pytriton", str(PROTOCOL_VERSION).encode(), b"\xff" * 64],
        [b"pytriton", b"\xff", b""],
    ],
)
def test_malformed_registrations_are_refused_and_the_registry_continues(own_triton, frames):
    assert send_request(own_triton, *frames)[0] == b"refused"

    bind_floats(own_triton, "another", double)
    assert send_floats(own_triton, "another", [1]) == [2]


def test_bind_raises_the_refusal(own_triton, monkeypatch):
    other = PROTOCOL_VERSION + 1
    monkeypatch.setattr("pytriton.proxy.registry.PROTOCOL_VERSION", other)

    with pytest.raises(
        PyTritonInvalidOperationError, match=f"version {PROTOCOL_VERSION} of the proxy protocol.*version {other}"
    ):
        bind_floats(own_triton, "later", double)
