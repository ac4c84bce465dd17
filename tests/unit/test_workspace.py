from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import warnings

import pytest

import pytriton.constants
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonWorkspaceError
from pytriton.utils.workspace import CleanupWarning, Workspace, sweep

KILL_ITSELF = """
import os, pathlib, signal, sys
from pytriton.utils.workspace import Workspace
workspace = Workspace(*sys.argv[1:])
(workspace.path / "models").mkdir()
(workspace.path / "models" / "config.pbtxt").write_text("left")
print(workspace.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("PYTRITON_HOME", str(folder))
    return folder


def fill(workspace):
    (workspace.path / "models" / "a").mkdir(parents=True)
    (workspace.path / "models" / "a" / "file").touch()
    (workspace.path / "socket").touch()


def names(folder):
    return [entry.name for entry in pathlib.Path(folder).iterdir()]


def killed_process(*arguments):
    process = subprocess.run([sys.executable, "-c", KILL_ITSELF, *arguments], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    return pathlib.Path(process.stdout.strip())


@pytest.fixture
def of_another_user(tmp_path, monkeypatch):
    """A folder that another user has created in one like ``/tmp``."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = shared / "workspace"
    folder.mkdir(mode=0o777)
    lstat = pathlib.Path.lstat

    def lstat_of_another_user(path):
        status = lstat(path)
        return status if path != folder else os.stat_result([*status[:4], os.getuid() + 1, *status[5:]])

    monkeypatch.setattr(pathlib.Path, "lstat", lstat_of_another_user)
    return folder


def test_without_a_path_a_folder_is_made_for_its_owner_alone(home):
    workspace = Workspace()

    assert workspace.exists()
    assert workspace.is_empty()
    assert workspace.path.parent == home
    assert workspace.path.name.startswith("pytriton-")
    assert workspace.path.stat().st_mode & 0o777 == 0o700


def test_without_home_the_folder_is_among_the_temporary_ones(monkeypatch):
    monkeypatch.delenv("PYTRITON_HOME")
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)

        assert str(Workspace().path.parent) == folder


def test_a_temporary_folder_whose_path_is_too_long_for_sockets_is_not_used(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTRITON_HOME")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 100)))

    assert str(Workspace().path.parent) in ("/tmp", "/var/tmp", "/dev/shm")


def test_workspaces_without_a_path_are_different_folders():
    assert Workspace().path != Workspace().path


def test_a_path_that_does_not_exist_is_made_for_its_owner_alone(tmp_path):
    workspace = Workspace(str(tmp_path / "a" / "b"))

    assert workspace.path == tmp_path / "a" / "b"
    assert workspace.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("given", [None, "new"])
def test_cleaning_removes_the_folder_and_its_contents(given, tmp_path):
    workspace = Workspace(given and tmp_path / given)
    fill(workspace)
    assert not workspace.is_empty()
    workspace.clean()

    assert not workspace.exists()
    assert workspace.is_empty()


def test_cleaning_keeps_earlier_files(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    workspace = Workspace(tmp_path / "mine")
    fill(workspace)
    workspace.clean()

    assert names(tmp_path / "mine") == ["notes"]


def test_cleaning_does_not_follow_links(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    workspace = Workspace()
    (workspace.path / "link").symlink_to(tmp_path / "mine")
    workspace.clean()

    assert (tmp_path / "mine" / "notes").exists()


def test_cleaning_twice_does_nothing_more():
    workspace = Workspace()
    workspace.clean()
    workspace.clean()

    assert not workspace.exists()


def test_cleaning_a_deleted_folder_is_silent():
    workspace = Workspace()
    for entry in workspace.path.iterdir():
        entry.unlink()
    workspace.path.rmdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workspace.clean()


def test_files_that_cannot_be_removed_are_warned_about(monkeypatch):
    workspace = Workspace()
    fill(workspace)

    def fail(path):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fail)
        with pytest.warns(CleanupWarning, match="could not be removed .*Operation not permitted.*remove it by hand"):
            workspace.clean()


def test_a_cleaned_workspace_can_be_reused():
    workspace = Workspace()
    path = workspace.path
    for _ in range(3):
        workspace.clean()
        workspace.create()
        workspace.create()
        fill(workspace)

    assert workspace.path == path
    workspace.clean()
    assert not path.exists()


def test_twenty_rounds_leave_no_descriptor_open():
    workspace = Workspace()
    before = len(names("/proc/self/fd"))
    for _ in range(20):
        workspace.clean()
        workspace.create()

    assert len(names("/proc/self/fd")) == before


def test_a_dropped_workspace_is_cleaned():
    workspace = Workspace()
    path = workspace.path
    del workspace
    gc.collect()

    assert not path.exists()


def test_a_workspace_is_cleaned_when_the_process_exits():
    code = "from pytriton.utils.workspace import Workspace; workspace = Workspace(); print(workspace.path)"
    path = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    assert path
    assert not pathlib.Path(path).exists()


def test_a_forked_child_does_not_clean_the_workspace():
    code = """
import os
from pytriton.utils.workspace import Workspace
workspace = Workspace()
child = os.fork()
if child == 0:
    workspace.clean()
    raise SystemExit
os.waitpid(child, 0)
print(workspace.exists())
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert result.stdout.split() == ["True"]


def test_a_forked_child_does_not_keep_the_workspace_of_a_killed_process(tmp_path):
    code = """
import os, signal, sys
from pytriton.utils.workspace import Workspace
workspace = Workspace(sys.argv[1])
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(1)
    os.write(writing, b"forked")
    signal.pause()
os.read(reading, 6)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "mine")]
    child = int(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
    try:
        assert Workspace(tmp_path / "mine").is_empty()
    finally:
        os.kill(child, signal.SIGKILL)


def test_files_of_a_killed_process_are_swept_by_the_next(home):
    left = killed_process()
    assert (left / "models" / "config.pbtxt").exists()
    workspace = Workspace()

    assert not left.exists()
    assert names(home) == [workspace.path.name]


def test_files_of_a_killed_process_in_a_given_folder_are_swept_by_the_next(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    killed_process(str(tmp_path / "mine"))
    workspace = Workspace(tmp_path / "mine")

    assert not (workspace.path / "models").exists()
    workspace.clean()
    assert names(tmp_path / "mine") == ["notes"]


def test_a_folder_that_a_killed_process_made_is_removed_by_the_next(tmp_path):
    left = killed_process(str(tmp_path / "new"))
    workspace = Workspace(left)
    assert workspace.is_empty()
    workspace.clean()

    assert not left.exists()


def test_a_sweep_reads_nothing_of_another_user(home, monkeypatch):
    folder = home / "pytriton-other"
    folder.mkdir(parents=True)
    record = folder / ".pytriton-owner"
    os.mkfifo(record)
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)

    sweeping = threading.Thread(target=sweep, args=(folder,), daemon=True)
    sweeping.start()
    sweeping.join(10)
    assert not sweeping.is_alive()
    assert record.exists()


def test_a_sweep_keeps_workspaces_in_use_and_other_files(home):
    used = Workspace()
    fill(used)
    (home / "pytriton-notes").mkdir()
    Workspace()

    assert (used.path / "models" / "a" / "file").exists()
    assert (home / "pytriton-notes").exists()


def test_a_folder_that_is_in_use_is_refused(tmp_path):
    first = Workspace(tmp_path / "shared")
    fill(first)
    with pytest.raises(PyTritonWorkspaceError, match=r"shared' is in use by another Triton; give each a folder"):
        Workspace(tmp_path / "shared")

    assert (first.path / "socket").exists()
    first.clean()
    Workspace(tmp_path / "shared")


def test_a_folder_that_another_process_takes_as_soon_as_it_is_made_is_left_to_it(tmp_path, monkeypatch):
    folder = tmp_path / "workspace"
    mkdir, others = pathlib.Path.mkdir, []

    def mkdir_and_lose(path, *arguments, **settings):
        mkdir(path, *arguments, **settings)
        if path == folder and not others:
            others.append(None)
            others[0] = Workspace(folder)
            fill(others[0])

    monkeypatch.setattr(pathlib.Path, "mkdir", mkdir_and_lose)
    with pytest.raises(PyTritonWorkspaceError, match="in use by another Triton"):
        Workspace(folder)

    assert "socket" in names(folder)
    others[0].clean()


def test_a_link_to_a_folder_is_a_workspace(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    workspace = Workspace(tmp_path / "link")
    fill(workspace)
    workspace.clean()

    assert names(tmp_path / "mine") == []


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_place_of_the_folder_is_named(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PyTritonWorkspaceError, match=r"The workspace '.*file.*' is not a folder: '.*file' is a file"):
        Workspace(tmp_path / path)
    assert issubclass(PyTritonWorkspaceError, FileExistsError), "as nvidia-pytriton raises"
    assert issubclass(PyTritonWorkspaceError, PyTritonBadParameterError)

    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_in_place_of_the_home_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYTRITON_HOME", str(tmp_path / "file"))
    with pytest.raises(PyTritonWorkspaceError, match=r"file' is not a folder: .*PYTRITON_HOME"):
        Workspace()


def test_a_full_disk_is_reported_and_leaves_nothing_behind(monkeypatch, home):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises(
        PyTritonRuntimeError, match=r"cannot be written \(No space left on device\); free some space, or"
    ):
        Workspace()

    assert names(home) == []


def test_a_folder_that_another_user_has_created_is_refused(of_another_user):
    with pytest.raises(PyTritonWorkspaceError, match=r"belongs to another user.*name another folder by workspace="):
        Workspace(of_another_user)

    assert names(of_another_user) == []


def test_a_folder_in_one_that_another_user_has_created_is_refused(of_another_user):
    with pytest.raises(PyTritonWorkspaceError, match="belongs to another user"):
        Workspace(of_another_user / "mine")

    assert names(of_another_user) == []


def test_a_home_that_another_user_has_created_is_refused(of_another_user, monkeypatch):
    monkeypatch.setenv("PYTRITON_HOME", str(of_another_user))

    with pytest.raises(PyTritonWorkspaceError, match="belongs to another user"):
        Workspace()


def test_a_folder_of_another_user_that_is_not_in_a_shared_one_is_used(of_another_user):
    of_another_user.parent.chmod(0o755)
    workspace = Workspace(of_another_user)

    assert workspace.is_empty()
    workspace.clean()


def test_a_link_in_the_place_of_the_record_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / ".pytriton-owner").symlink_to(target)

    with pytest.raises(PyTritonRuntimeError, match="cannot be written"):
        Workspace(folder)

    assert target.read_text() == "precious"


def test_without_a_folder_for_temporary_files_an_error_names_the_remedy(monkeypatch):
    def no_folder():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.delenv("PYTRITON_HOME")
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    with pytest.raises(PyTritonWorkspaceError, match="by the environment variable PYTRITON_HOME"):
        Workspace()
    assert pathlib.Path("/tmp") == importlib.reload(pytriton.constants).PYTRITON_HOME
    monkeypatch.undo()
    importlib.reload(pytriton.constants)
