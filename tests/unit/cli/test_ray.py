"""``pytriton ray`` without a cluster, or with invalid arguments."""

from __future__ import annotations

import socket
import sys

import pytest

pytest.importorskip("ray.serve")

from pytriton.cli.main import main


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that is printed."""
    assert main(["ray", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


@pytest.fixture
def closed_port() -> int:
    """A closed port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize("command", ["status", "targets"])
def test_an_unreachable_cluster_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], closed_port: int, command: str
) -> None:
    address = f"127.0.0.1:{closed_port}"
    line = error_of(capsys, command, "--address", address)
    assert line == f"pytriton: There is no Ray cluster at '{address}': [Errno 111] Connection refused."


@pytest.mark.parametrize("address", ["nonsense", "ray://10.0.0.10:10001", "10.0.0.10:port"])
def test_a_malformed_address_is_refused(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert repr(address) in error_of(capsys, "status", "--address", address)


@pytest.mark.parametrize("place", ["9400", "localhost:port", "localhost:70000", "::1:9400"])
def test_a_malformed_listening_address_is_refused(capsys: pytest.CaptureFixture[str], place: str) -> None:
    assert f"--listen is {place!r}; give HOST:PORT" in error_of(capsys, "targets", "--listen", place)


def test_the_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'pytriton[ray]'" in error_of(capsys, "status")
