"""``pytriton check``."""

from __future__ import annotations

import socket

import numpy as np

from pytriton.cli.main import main


def lines_of(capsys, *arguments):
    assert main(["check", "--no-requests", *arguments]) == 0
    return dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if " " in line)


def test_it_shows_the_bundled_server_and_its_vulnerabilities(capsys):
    lines = lines_of(capsys)
    assert lines["Server"].startswith("Triton 2.51.0 (bundled), /")
    assert lines["Vulnerabilities"].startswith("Triton 2.51.0 has 42 known vulnerabilities, 5 of them critical")
    assert "grpc-cancellation" in lines["Workarounds"]


def test_it_shows_a_current_server_which_has_none(capsys, current_server):
    lines = lines_of(capsys, "--server-path", str(current_server))
    assert lines["Server"] == f"Triton 2.71.0 (not bundled), {current_server}"
    assert lines["Vulnerabilities"] == "none that are known"
    assert "grpc-cancellation" not in lines["Workarounds"]


def test_a_server_of_unknown_version_needs_all_workarounds(capsys, current_server):
    (current_server / "TRITON_VERSION").unlink()
    lines = lines_of(capsys, "--server-path", str(current_server))
    assert lines["Server"].startswith("Triton of an unknown version (not bundled)")
    assert "grpc-cancellation" in lines["Workarounds"]


def test_a_folder_without_a_server_is_refused(capsys, tmp_path):
    assert main(["check", "--server-path", str(tmp_path)]) == 1
    assert "There is no Triton server in" in capsys.readouterr().err


def test_it_shows_the_packages_and_the_names_of_variables_but_not_their_values(capsys, monkeypatch):
    monkeypatch.setenv("PYTRITON_ACCESS_TOKEN", "a-secret")
    assert main(["check", "--no-requests"]) == 0
    printed = capsys.readouterr().out
    assert "PYTRITON_ACCESS_TOKEN" in printed
    assert "a-secret" not in printed
    assert f"numpy {np.__version__}" in printed


def test_it_shows_the_processors_and_their_limit(capsys, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    for limit, shown in [(None, "4 CPUs, "), (1.5, "4 CPUs (limited to 1.5), ")]:
        monkeypatch.setattr("pytriton.cli.diagnosis.cpu_limit", lambda limit=limit: limit)
        assert lines_of(capsys)["Machine"].startswith(shown)


def test_it_shows_which_ports_are_taken(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("pytriton.cli.diagnosis.DEFAULT_GRPC_PORT", port)
        lines = lines_of(capsys)
    assert f"{port} is taken" in lines["Ports"]
    assert f"{port} is free" in lines_of(capsys)["Ports"]


def test_a_server_that_does_not_start_is_a_failure(capsys, current_server):
    assert main(["check", "--server-path", str(current_server)]) == 1
    printed = capsys.readouterr()
    assert "Start            failed: " in printed.out
    assert "These checks failed: Start." in printed.err


def test_a_file_that_cannot_be_written_is_an_error(capsys, tmp_path):
    path = tmp_path / "no_folder" / "check.zip"
    assert main(["check", "--no-requests", "--zip", str(path)]) == 1
    assert f"'{path}' cannot be written: No such file or directory." in capsys.readouterr().err
