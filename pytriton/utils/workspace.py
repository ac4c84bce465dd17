"""The folder for PyTriton's files at run time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import pathlib
import shutil
import stat
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterator

from pytriton.exceptions import PyTritonRuntimeError, PyTritonWorkspaceError
from pytriton.utils.signals import clean_up_when_killed, forget_clean_up

LOGGER = logging.getLogger(__name__)

PYTRITON_HOME = "PYTRITON_HOME"

_TEMPORARY_PREFIX = "pytriton-"
# Lists what to keep when the folder is cleaned. The folder is locked (flock) for as long as its owner lives, which
# distinguishes the remains of a killed process from a folder in use.
_OWNER_FILE = ".pytriton-owner"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SWEEP_TIMEOUT_S = 1.0
_MAX_PARENT_BYTES = 107 - len("/pytriton-12345678/sockets/p123456/workers")  # of a socket's path
_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")

_in_use_here: weakref.WeakSet[Workspace] = weakref.WeakSet()


class CleanupWarning(UserWarning):
    """Warns of a workspace that could not be removed."""


class Workspace:
    """The folder for PyTriton's files at run time.

    Files that were in the folder before stay there. Files that were added later are removed by `clean`, at the latest
    when the process ends. The next workspace in the same place removes what a killed process left behind.

    Args:
        workspace_path: The folder. If it does not exist, it is created, readable by its owner only, and removed at the
            end. By default, a folder ``pytriton-…`` is created in the folder that the environment variable
            ``PYTRITON_HOME`` names, or else in the system's folder for temporary files (``TMPDIR``), unless that path
            is too long for sockets.

    Raises:
        PyTritonWorkspaceError: The path is not a folder, another PyTriton uses it, or another user could change it.
        PyTritonRuntimeError: The folder cannot be made or written.

    Examples:
        >>> workspace = Workspace()
        >>> workspace.exists(), workspace.is_empty()
        (True, True)
        >>> workspace.clean()
    """

    def __init__(self, workspace_path: str | os.PathLike[str] | None = None) -> None:
        """Creates the folder; see the class.

        Args:
            workspace_path: The folder.
        """
        self._finalizer: weakref.finalize[..., Workspace] | None = None
        self._temporary = workspace_path is None
        self._path = _new_temporary_folder() if workspace_path is None else _absolute(workspace_path)
        self.create()

    @property
    def path(self) -> pathlib.Path:
        """Absolute path of the folder."""
        return self._path

    def create(self) -> None:
        """Creates the folder and starts to use it, as `__init__` does; does nothing while it is in use.

        Raises:
            PyTritonWorkspaceError: The path is not a folder, another PyTriton uses it, or another user could change it.
            PyTritonRuntimeError: The folder cannot be made or written.
        """
        if self._finalizer is not None and self._finalizer.alive:
            return
        with _named_errors(self._path):
            made = _make_folder(self._path) or self._temporary
            try:
                lock, kept, made = _take(self._path, made)
            except PyTritonWorkspaceError:  # another process has taken it meanwhile
                raise
            except BaseException:
                if made:
                    shutil.rmtree(self._path, ignore_errors=True)
                raise
        self._lock = lock
        _in_use_here.add(self)  # first: another thread may fork
        self._finalizer = weakref.finalize(self, _release, self._path, lock, kept, made)
        clean_up_when_killed(self._finalizer)

    def exists(self) -> bool:
        """Returns whether the folder exists."""
        return self._path.exists()

    def is_empty(self) -> bool:
        """Returns whether the folder holds nothing, or does not exist."""
        return not self.exists() or all(entry.name == _OWNER_FILE for entry in self._path.iterdir())

    def _leave_to_parent(self) -> None:
        """Forgets, in a forked child, that the folder is in use; otherwise its lock would outlive the parent."""
        if self._finalizer is not None and self._finalizer.detach() is not None:
            os.close(self._lock)

    def clean(self) -> None:
        """Removes the files that were added since `create`, and the folder itself if it was created then.

        Warns:
            CleanupWarning: Something could not be removed.
        """
        if self._finalizer is not None:
            self._finalizer()
            forget_clean_up(self._finalizer)


def private_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes a folder of mode 0700; one that exists gets that mode, too: others could put programs or sockets there.

    Args:
        path: The folder; its parent exists.

    Returns:
        The folder.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
    return path


def sweep(folder: pathlib.Path) -> None:
    """Removes what a killed process left in a folder that it used as its workspace.

    Args:
        folder: The folder; nothing happens when it is in use, is another user's, or was never a workspace.
    """
    with contextlib.suppress(OSError):
        lock = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW)
        try:
            # Another user's record may be a pipe, for example, and reading it would block.
            if os.fstat(lock).st_uid != os.getuid():
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = _read_record(folder)
            if record is not None:
                LOGGER.info("Removing %s, which a killed process left behind.", folder)
                _remove(folder, *record)
        finally:
            os.close(lock)


def workspaces_in_use() -> list[pathlib.Path]:
    """Returns the folders of this user's workspaces that running processes have made in the usual place."""
    return [folder for folder in sorted(_usual_parent().glob(f"{_TEMPORARY_PREFIX}*")) if _is_in_use(folder)]


def _is_in_use(folder: pathlib.Path) -> bool:
    try:
        lock = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(lock).st_uid != os.getuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _absolute(path: str | os.PathLike[str]) -> pathlib.Path:
    return pathlib.Path(path).expanduser().absolute()


def _new_temporary_folder() -> pathlib.Path:
    parent = _usual_parent()
    with _named_errors(parent):
        _make_folder(parent)
        for folder in parent.glob(f"{_TEMPORARY_PREFIX}*"):
            sweep(folder)
        return pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=parent))


def _usual_parent() -> pathlib.Path:
    """Returns the folder of workspaces that the user has not named."""
    home = os.environ.get(PYTRITON_HOME)
    return _absolute(home) if home else _short_temporary_folder()


def _short_temporary_folder() -> pathlib.Path:
    """Returns the system's folder for temporary files, or another one if its path is too long for sockets."""
    try:
        usual = _absolute(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise PyTritonWorkspaceError(
            f"There is no folder for temporary files that can be written; name a folder by workspace= or by the "
            f"environment variable {PYTRITON_HOME}."
        ) from error
    for folder in (usual, *map(pathlib.Path, _SHORT_FOLDERS)):
        if len(str(folder).encode()) <= _MAX_PARENT_BYTES and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return usual


def _make_folder(path: pathlib.Path) -> bool:
    """Creates a folder unless it exists; returns whether it was created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_owners(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_dir():
            _check_owners(path)
            return False
        raise
    return True


def _check_owners(path: pathlib.Path) -> None:
    """Refuses a folder if another user created it, or a parent of it, in a shared folder such as ``/tmp``."""
    for folder in (path, *path.parents):
        is_shared = folder.parent.stat().st_mode & (stat.S_ISVTX | stat.S_IWOTH) == stat.S_ISVTX | stat.S_IWOTH
        if is_shared and folder.lstat().st_uid not in (0, os.getuid()):
            raise PyTritonWorkspaceError(
                f"The workspace's folder {str(folder)!r} belongs to another user, who could run programs as you; name "
                f"another folder by workspace= or by the environment variable {PYTRITON_HOME}."
            )


def _take(folder: pathlib.Path, made: bool) -> tuple[int, list[str], bool]:
    """Locks the folder, removes what a killed owner left, and records the new owner.

    Returns the descriptor that holds the lock, the names to keep, and whether to remove the folder itself.
    """
    lock = os.open(folder, _FOLDER_FLAGS)
    try:
        locked = _locked(lock, folder)
        record = _read_record(folder)
        if record is not None:
            if not locked:
                raise _in_use(folder)
            kept, made = record
            _remove_entries(folder, kept)
        else:
            kept = [] if made else [entry.name for entry in folder.iterdir()]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(folder / _OWNER_FILE, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "made": made, "kept": kept}, file)
    except BaseException:
        os.close(lock)
        raise
    return lock, kept, made


def _locked(lock: int, folder: pathlib.Path) -> bool:
    """Locks the folder; returns False if the file system does not support such locks."""
    deadline = time.monotonic() + _SWEEP_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            # Without a record, the lock is held not by an owner but, briefly, by the sweep of another process.
            if _read_record(folder) is not None or time.monotonic() > deadline:
                raise _in_use(folder) from None
            time.sleep(0.001)
        except OSError:
            return False


def _in_use(folder: pathlib.Path) -> PyTritonWorkspaceError:
    return PyTritonWorkspaceError(
        f"The workspace {str(folder)!r} is in use by another Triton; give each a folder of its own, or none."
    )


def _read_record(folder: pathlib.Path) -> tuple[list[str], bool] | None:
    """Reads which names to keep in the folder, and whether to remove the folder itself."""
    try:
        record = json.loads((folder / _OWNER_FILE).read_text(encoding="utf-8"))
        return [str(name) for name in record["kept"]], bool(record["made"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _release(folder: pathlib.Path, lock: int, kept: list[str], made: bool) -> None:
    try:
        _remove(folder, kept, made)
    finally:
        # Closing alone would leave the lock to forked children.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _remove(folder: pathlib.Path, kept: list[str], made: bool) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            _remove_entries(folder, kept)
            (folder / _OWNER_FILE).unlink(missing_ok=True)
            if made:
                folder.rmdir()
    except OSError as error:
        warnings.warn(
            f"The workspace {str(folder)!r} could not be removed ({error}); remove it by hand.",
            CleanupWarning,
            stacklevel=4,
        )


def _remove_entries(folder: pathlib.Path, kept: list[str]) -> None:
    for entry in list(folder.iterdir()):
        if entry.name in kept or entry.name == _OWNER_FILE:
            continue
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextlib.contextmanager
def _named_errors(path: pathlib.Path) -> Iterator[None]:
    remedy = f"name another folder by workspace= or by the environment variable {PYTRITON_HOME}"
    try:
        yield
    except PyTritonWorkspaceError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise PyTritonWorkspaceError(
            f"The workspace {str(path)!r} is not a folder: {error.filename!r} is a file; {remedy}."
        ) from error
    except OSError as error:
        also = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise PyTritonRuntimeError(
            f"The workspace {str(path)!r} cannot be written ({error.strerror}); {also}{remedy}."
        ) from error


def _leave_all_to_parent() -> None:
    for workspace in list(_in_use_here):
        workspace._leave_to_parent()
    _in_use_here.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
