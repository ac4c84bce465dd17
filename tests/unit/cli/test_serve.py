"""``pytriton serve --dry-run``: the command line for a server, which is not started."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys

import pytest

from pytriton.cli.main import main

TOKEN = "the-token-of-the-test"


@pytest.fixture
def command(capsys, tmp_path, current_server):
    """Returns the version and the words of the command line; PORTS are free ones."""

    def run(*arguments):
        repository = tmp_path / "repository"
        repository.mkdir(exist_ok=True)
        ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        assert main(["serve", str(repository), "--dry-run", "--token", TOKEN, *ports, *arguments]) == 0
        version, line = capsys.readouterr().out.splitlines()
        return version, shlex.split(line)

    return run


def test_the_command_line_for_a_current_server(command, current_server):
    version, words = command(
        "--server-path", str(current_server), "--allow-client-shm", "--http-max-input-size", "1000"
    )
    assert version == "# Triton 2.71.0"
    assert words[0] == str(current_server / "bin" / "tritonserver")
    assert {"--allow-client-shm=true", "--http-max-input-size=1000"} < set(words)


def test_flags_that_a_server_lacks_are_left_out(command, current_server, caplog):
    text = current_server / "help"
    text.write_text(text.read_text().replace("--repoagent-directory", "--agents"))
    _, words = command("--server-path", str(current_server))
    assert not [word for word in words if word.startswith("--repoagent-directory")]
    assert "has no flag --repoagent-directory" in caplog.text


def test_the_token_is_hidden(command):
    version, words = command()
    assert version == "# Triton 2.51.0"
    assert not [word for word in words if TOKEN in word]
    assert [word for word in words if word.endswith("=***")]


def test_other_secrets_are_hidden(command):
    _, words = command("--cache-config", "redis,password=SECRET", "--http-restricted-api", "inference:key=SECRET")
    assert not [word for word in words if "SECRET" in word]
    assert "--cache-config=***" in words


def test_nothing_is_started(command, current_server):
    command("--server-path", str(current_server))
    assert (current_server / "runs").read_text().splitlines() == ["run"]  # for its flags


def test_two_repositories_are_refused(capsys):
    assert main(["serve", "a", "--http-port", "0", "b"]) == 1
    assert "takes one repository, not 2: 'a', 'b'" in capsys.readouterr().err


def test_an_empty_path_is_not_the_working_folder(capsys):
    assert main(["serve", "", "--dry-run"]) == 1
    assert "REPOSITORY is ''; use a path." in capsys.readouterr().err


DRY_RUN = [sys.executable, "-P", "-m", "pytriton", "serve", "--dry-run", "."]


def test_output_to_a_full_disk(tmp_path):
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(DRY_RUN, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "pytriton: Standard output cannot be written: No space left on device."
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_output_that_nobody_reads(tmp_path):
    with subprocess.Popen(DRY_RUN, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 1
        assert "BrokenPipe" not in errors
        assert "Broken pipe" not in errors


def test_help_has_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["gateway", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "The port; 0 chooses a free one. Default: 8080." in shown
    assert "at level INFO by the logger pytriton.gateway.access. Default: false." in shown
    assert "with None, no key is needed. --forwarded" in shown


@pytest.mark.parametrize("command_line", [["serve"], ["gateway"]])
def test_help_has_the_whole_text_of_each_setting(command_line, capsys):
    with pytest.raises(SystemExit):
        main([*command_line, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    wholes = {
        "serve": "Exit when something fails during startup, such as loading a model of model_repository; on",
        "gateway": "Otherwise each one starts a trace, so that clients cannot decide what is recorded.",
    }
    assert wholes[command_line[0]] in shown
