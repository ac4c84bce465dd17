"""Installs what a comparison needs: a virtual environment for each contender, and perf_analyzer."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PEER_VERSION = "0.7.0"

NETWORK_REQUIREMENT = "onnxruntime>=1.17"

_PEER_REQUIREMENTS = [f"nvidia-pytriton=={PEER_VERSION}", "numpy<2", NETWORK_REQUIREMENT]
_PEER_PYTHONS = ((3, 8), (3, 13))
PERF_ANALYZER_REQUIREMENT = "tritonclient==2.50.0"
"""The wheel that contains perf_analyzer, which does not know its own version."""

# Libraries that perf_analyzer needs and few machines have; the peer's wheel has both, with a hash in their names.
_PERF_ANALYZER_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
_NAMED_PACKAGES = (
    "pytriton",
    "nvidia-pytriton",
    "bentoml",
    "litserve",
    "mosec",
    "ray",
    "fastapi",
    "uvicorn",
    "granian",
    "robyn",
    "numpy",
    "pyzmq",
    "onnxruntime",
    "torch",
    "scikit-learn",
    "magika",
    "rapidocr",
)
_NOT_INSTALLED = ("benchmarks/", "build/", "docs/", "examples/", "tests/")


class SetupError(RuntimeError):
    """Something that the comparison needs could not be installed or found."""


@dataclass(frozen=True)
class Contender:
    """Something that is measured.

    Attributes:
        name: its name in options and files.
        title: what the table calls it.
        python: interpreter of its virtual environment.
        variables: environment variables of its server's process.
    """

    name: str
    title: str
    python: Path
    variables: dict[str, str]


@dataclass(frozen=True)
class PerfAnalyzer:
    """NVIDIA's load generator.

    Attributes:
        binary: the executable.
        variables: environment variables it runs with.
    """

    binary: Path
    variables: dict[str, str]


def prepare_ours(cache: Path, base_python: Path, name: str = "ours", more: Sequence[str] = ()) -> Contender:
    """Install this repository as it stands now; done again only when its sources have changed.

    Args:
        cache: folder that keeps the virtual environments between runs.
        base_python: interpreter to make the virtual environment with.
        name: of the virtual environment's folder.
        more: what else is installed in it.

    Raises:
        SetupError: if the repository does not install.
    """
    python = _virtual_environment(
        cache / name, base_python, [str(REPOSITORY), NETWORK_REQUIREMENT, *more], _fingerprint_of_sources()
    )
    return ours_in(python)


def ours_in(python: Path) -> Contender:
    """Use an environment in which this project is already installed, such as an editable one."""
    return Contender("ours", f"this project ({git_description()})", python, clean_environment())


def prepare_peer(cache: Path, base_python: Path) -> Contender:
    """Install nvidia-pytriton, unless an earlier run has.

    Args:
        cache: folder that keeps the virtual environments between runs.
        base_python: interpreter to make the virtual environment with: Python 3.8 to 3.13, with a shared libpython.

    Raises:
        SetupError: if the interpreter does not fit, or the package does not install.
    """
    libpython = libpython_folder(base_python)
    python = _virtual_environment(cache / "peer", base_python, _PEER_REQUIREMENTS, "")
    variables = clean_environment()
    variables["LD_LIBRARY_PATH"] = str(libpython)
    return Contender("peer", f"nvidia-pytriton {PEER_VERSION}", python, variables)


def prepare_perf_analyzer(cache: Path, peer: Contender) -> PerfAnalyzer:
    """Fetch perf_analyzer, and put the libraries that it needs beside it.

    Args:
        cache: folder that keeps it between runs.
        peer: nvidia-pytriton's environment, whose server has those libraries.

    Raises:
        SetupError: if the wheel or a library cannot be found.
    """
    folder = cache / "perf_analyzer"
    binary = folder / "perf_analyzer"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--only-binary=:all:", f"--dest={folder}"]
        run_command([str(peer.python), "-m", "pip", "download", "--quiet", *options, PERF_ANALYZER_REQUIREMENT])
        wheel = _only_match(folder, "tritonclient-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/bin/perf_analyzer"))
            unfinished = binary.with_suffix(".part")
            with archive.open(member) as source, unfinished.open("wb") as target:
                shutil.copyfileobj(source, target)
        unfinished.chmod(0o755)
        unfinished.rename(binary)
        wheel.unlink()
    libraries = folder / "lib"
    libraries.mkdir(exist_ok=True)
    bundled = _only_match(peer.python.parent.parent, "lib/python3*/site-packages/nvidia_pytriton.libs")
    for soname, pattern in _PERF_ANALYZER_LIBRARIES.items():
        link = libraries / soname
        link.unlink(missing_ok=True)
        link.symlink_to(_only_match(bundled, pattern))
    variables = clean_environment()
    variables["LD_LIBRARY_PATH"] = str(libraries)
    return PerfAnalyzer(binary, variables)


def interpreter(name: str) -> Path:
    """Read the name or the path of a Python interpreter from the command line."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is not an executable")
    # Not resolved: a virtual environment is recognized by the path of its link.
    return Path(found).absolute()


def versions(python: Path) -> dict[str, str]:
    """Name the versions of Python and of the packages that matter to speed in an environment."""
    script = (
        "import importlib.metadata as m, json, platform\n"
        "installed = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        f"found = {{name: installed[name] for name in {_NAMED_PACKAGES!r} if name in installed}}\n"
        "print(json.dumps({'Python': platform.python_version(), **found}))"
    )
    found: dict[str, str] = json.loads(run_command([str(python), "-c", script]))
    return found


def _virtual_environment(folder: Path, base_python: Path, requirements: list[str], fingerprint: str) -> Path:
    python = folder / "bin" / "python"
    stamp = folder / "installed.json"
    wanted = json.dumps([str(base_python), requirements, fingerprint])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr)
    if folder.exists():
        shutil.rmtree(folder)
    run_command([str(base_python), "-m", "venv", str(folder)])
    run_command([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    stamp.write_text(wanted)
    return python


def environment(folder: Path, base_python: Path, requirements: list[str]) -> tuple[Path, dict[str, str]]:
    """Make a virtual environment, unless an earlier run has.

    Args:
        folder: where it goes.
        base_python: interpreter to make it with.
        requirements: what is installed in it.

    Returns:
        Its interpreter, and the environment variables for what runs in it.

    Raises:
        SetupError: if something does not install.
    """
    python = _virtual_environment(folder, base_python, requirements, "")
    variables = clean_environment()
    variables["PATH"] = f"{python.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return python, variables


def site_packages(python: Path) -> Path:
    """Find the folder with the packages of a virtual environment."""
    return Path(run_command([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


def libpython_folder(python: Path) -> Path:
    """Find the folder of the shared libpython that nvidia-pytriton's server looks for.

    Raises:
        SetupError: if nvidia-pytriton does not run on the interpreter, or it has no shared libpython.
    """
    script = (
        "import json, sys, sysconfig\n"
        "print(json.dumps([sys.version_info[:2], *map(sysconfig.get_config_var, ('LIBDIR', 'MULTIARCH'))]))"
    )
    version, libdir, multiarch = json.loads(run_command([str(python), "-c", script]))
    oldest, newest = _PEER_PYTHONS
    if not oldest <= tuple(version) <= newest:
        raise SetupError(
            f"nvidia-pytriton {PEER_VERSION} runs on Python 3.8 to 3.13, and {python} is {version[0]}.{version[1]}: "
            "name another interpreter with --python"
        )
    soname = f"libpython{version[0]}.{version[1]}.so.1.0"
    for folder in (Path(libdir), Path(libdir, multiarch or "")):
        if (folder / soname).exists():
            return folder
    raise SetupError(
        f"nvidia-pytriton {PEER_VERSION} needs {soname}, which is not in {libdir}: install it, or name an interpreter "
        "built with --enable-shared with --python"
    )


def _fingerprint_of_sources() -> str:
    """Hash all files that a build could read; git lists them."""
    listed = run_command(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=REPOSITORY)
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        path = REPOSITORY / name
        if not name.startswith(_NOT_INSTALLED) and path.is_file():
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def git_description() -> str:
    """Name the commit that is measured, and whether it was changed since."""
    try:
        return run_command(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY).strip()
    except SetupError:
        return "not committed"


def clean_environment() -> dict[str, str]:
    """Leave out variables by which a contender would find packages or libraries of another."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def _only_match(folder: Path, pattern: str) -> Path:
    matches = sorted(folder.glob(pattern))
    if len(matches) != 1:
        raise SetupError(f"expected one {pattern} in {folder}, found {len(matches)}: remove the folder and run again")
    return matches[0]


def run_command(command: list[str], cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Run a command, and return its output.

    Args:
        command: it, with its arguments.
        cwd: folder that it runs in.
        variables: its environment variables; by default those of this process, without those that could interfere.

    Raises:
        SetupError: if it fails; the message has its output.
    """
    try:
        env = clean_environment() if variables is None else dict(variables)
        finished = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be run: {error}") from error
    if finished.returncode != 0:
        raise SetupError(f"`{' '.join(command)}` failed:\n{finished.stdout}{finished.stderr}")
    return finished.stdout
