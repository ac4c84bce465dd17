"""Finds the server's files: the bundled server, or one of the user's own."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

import pytriton
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.utils.workspace import private_folder

SERVER_PATH_VARIABLE = "PYTRITON_SERVER_PATH"
"""Environment variable that names a server's folder, like ``/opt/tritonserver``, to use in place of the bundled one."""

_BACKEND = "pytriton"
_BACKENDS = (_BACKEND, "python")  # the proxy backend's two names: of bound models, and of repositories of Python files


@dataclasses.dataclass(frozen=True)
class ServerFiles:
    """The files of a server.

    Attributes:
        root: The server's folder, with ``bin``, ``lib``, ``backends`` and ``caches``.
        launcher: The program that starts the server and ties it to this process.
        backend: The folder of the proxy backend, which always comes with the package; the one for Python files lies
            next to it.
    """

    root: pathlib.Path
    launcher: pathlib.Path
    backend: pathlib.Path

    @property
    def is_bundled(self) -> bool:
        """Whether this is the server that comes with the package."""
        return self.root == self.launcher.parent.parent

    @property
    def executable(self) -> pathlib.Path:
        """The program ``tritonserver``."""
        return self.root / "bin" / "tritonserver"

    @property
    def libraries(self) -> pathlib.Path:
        """The folder of the libraries that the server needs."""
        return self.root / "lib"

    @property
    def caches(self) -> pathlib.Path:
        """The folder of the server's response caches."""
        return self.root / "caches"

    @property
    def repository_agents(self) -> pathlib.Path:
        """The folder of the server's repository agents."""
        return self.root / "repoagents"

    def backends(self, folder: pathlib.Path, more: pathlib.Path | None = None) -> pathlib.Path:
        """Returns a folder with all backends: the server's, the user's, and the proxy backend.

        If several backends have the same name, the last in this order is used.

        Args:
            folder: Where to create links, unless all backends are in one place already.
            more: A folder with more backends.

        Raises:
            PyTritonBadParameterError: ``more`` is not a folder.
        """
        own = self.root / "backends"
        if own == self.backend.parent and more is None:
            return own
        if more is not None and not more.is_dir():
            raise PyTritonBadParameterError(
                f"TritonConfig.backend_directory is {str(more)!r}, which is not a folder; name one with a folder for "
                "each backend."
            )
        private_folder(folder)
        found = {path.name: path for path in (*_folders(own), *_folders(more))}
        found.update((name, self.backend.parent / name) for name in _BACKENDS)
        for link in folder.iterdir():  # of an earlier server
            link.unlink()
        for name, path in found.items():
            (folder / name).symlink_to(path)
        return folder


def find_server(path: str | os.PathLike[str] | None = None) -> ServerFiles:
    """Finds the server to start.

    Args:
        path: A server's folder, like ``/opt/tritonserver``. By default the one that the environment variable
            ``PYTRITON_SERVER_PATH`` names, else the server that comes with the package.

    Raises:
        PyTritonBadParameterError: There is no server in the folder.
        PyTritonRuntimeError: The package was installed without its server or its backend.
    """
    package_path = list(pytriton.__path__)
    chosen = path or os.environ.get(SERVER_PATH_VARIABLE)
    if not chosen:
        files = own_files(package_path)
        if not os.access(files.executable, os.X_OK):
            raise _incomplete("The Triton server is missing from ", package_path)
        return files
    files = dataclasses.replace(own_files(package_path), root=pathlib.Path(chosen).expanduser().absolute())
    if not os.access(files.executable, os.X_OK):
        where = "server_path" if path else f"the environment variable {SERVER_PATH_VARIABLE}"
        raise PyTritonBadParameterError(
            f"There is no Triton server in {files.root} ({where}): {files.executable} is not a program. Name a folder "
            "like /opt/tritonserver, or none to use the server that comes with pytriton."
        )
    return files


def _folders(parent: pathlib.Path | None) -> list[pathlib.Path]:
    if parent is None or not parent.is_dir():
        return []
    return [path.absolute() for path in parent.iterdir()]


def own_files(package_path: Sequence[str]) -> ServerFiles:
    """Returns the files of the package: launcher and backend, and the server unless it was built without.

    Args:
        package_path: Folders that make up the package; an editable install has two.

    Raises:
        PyTritonRuntimeError: They are missing.
    """
    for folder in package_path:
        root = pathlib.Path(folder) / "tritonserver"
        files = ServerFiles(root, root / "bin" / "pytriton-launch", root / "backends" / _BACKEND)
        if os.access(files.launcher, os.X_OK) and files.backend.is_dir():
            return files
    raise _incomplete("The proxy backend is missing from ", package_path)


def _incomplete(what: str, package_path: Sequence[str]) -> PyTritonRuntimeError:
    imported = " and ".join(package_path)
    installed = _installed_elsewhere(package_path)
    if installed is None:
        advice = (
            "install the package with `pip install .`, which builds and fetches what it needs, rather than run from "
            "the source folder."
        )
    else:
        advice = (
            "this program imports the sources, because Python searches the folder of the program, or the current one, "
            f"first. The installed package is in {installed}: save the program in another folder and start it there, "
            "or start Python 3.11 or later with -P."
        )
    return PyTritonRuntimeError(f"{what}{imported}/tritonserver: {advice}")


def _installed_elsewhere(package_path: Sequence[str]) -> pathlib.Path | None:
    """Returns the folder of the installed package, if the imported one is a source folder without the server."""
    if not any((pathlib.Path(folder).parent / "pyproject.toml").is_file() for folder in package_path):
        return None
    imported = {os.path.realpath(folder) for folder in package_path}
    for folder in sys.path:
        package = pathlib.Path(folder or os.curdir).absolute() / "pytriton"
        if os.path.realpath(package) not in imported and (package / "tritonserver" / "backends" / _BACKEND).is_dir():
            return package
    return None
