"""``pytriton check``."""

from __future__ import annotations

from pytriton.cli.main import main


def lines_of(capsys, *arguments):
    assert main(["check", *arguments]) == 0
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


def test_a_server_that_does_not_say_its_version_needs_all_workarounds(capsys, current_server):
    (current_server / "TRITON_VERSION").unlink()
    lines = lines_of(capsys, "--server-path", str(current_server))
    assert lines["Server"].startswith("Triton of an unknown version (not bundled)")
    assert "grpc-cancellation" in lines["Workarounds"]


def test_a_folder_without_a_server_is_refused(capsys, tmp_path):
    assert main(["check", "--server-path", str(tmp_path)]) == 1
    assert "There is no Triton server in" in capsys.readouterr().err
