"""The environment in which the server is started."""

from __future__ import annotations

import pytest

from pytriton.server import launch
from pytriton.server.config import TritonConfig
from pytriton.server.files import find_server


@pytest.mark.parametrize(
    ("libzmq", "is_added"), [("/env/pyzmq.libs/libzmq-5dd2f677.so.5", True), ("/conda/lib/libzmq.so.5", False)]
)
def test_the_server_finds_the_libraries_of_pyzmq_and_no_others(monkeypatch, tmp_path, libzmq, is_added):
    monkeypatch.setattr(launch, "_libzmq_path", lambda: libzmq)
    variables = launch.environment_variables(find_server(), TritonConfig(), tmp_path, None)
    folders = variables["LD_LIBRARY_PATH"].split(":")
    assert folders[0].endswith("/lib")
    assert (libzmq.rpartition("/")[0] in folders) is is_added
    assert variables["PYTRITON_LIBZMQ"] == libzmq


def test_only_flags_with_secrets_leave_the_command_line():
    cache, token = "--cache-config=redis,password=mine", "--http-restricted-api=metadata:key=mine"
    shown, variables = launch.without_secrets(["server", cache, "--cache-config=local,size=1", token])

    assert shown == [
        "server",
        "--cache-config=@PYTRITON_SECRET_0",
        "--cache-config=local,size=1",
        "--http-restricted-api=@PYTRITON_SECRET_1",
    ]
    assert variables == {"PYTRITON_SECRET_0": "redis,password=mine", "PYTRITON_SECRET_1": "metadata:key=mine"}
