"""Builds images and runs containers by buildah, without a daemon: in a chroot, on this machine's network.

Environment variables: ``IMAGE_BASE`` names another base than the Dockerfile's, and ``IMAGE_BUILD_OPTIONS`` has more
options for buildah, such as ``--volume`` for the configuration of pip. buildah itself reads ``STORAGE_DRIVER``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from manifests import Pod
from serving import wait_until

ROOT = Path(__file__).parents[2]
UID = 10001

# In its own mount and process namespaces: the image's files read-only, the pod's volumes, and then, without
# any capability, the command as process 1.
_SCRIPT = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
for folder in $VOLUMES; do mount -t tmpfs -o mode=1777 tmpfs "$root$folder"; done
exec chroot "$root" setpriv --reuid "$ID" --regid "$ID" --clear-groups --no-new-privs --bounding-set=-all \\
  env --ignore-environment --chdir=/app $VARIABLES "$@"
"""


def buildah(*arguments: object) -> str:
    """Runs buildah, and returns what it prints; skips the test if it is not installed or may do nothing."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed, which builds images without a daemon")
    if os.geteuid():
        pytest.skip("only root builds images and mounts them")
    command = ["buildah", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def build(dockerfile: Path, tag: str, context: Path, **arguments: str) -> str:
    """Builds an image, and returns its name."""
    more = shlex.split(os.environ.get("IMAGE_BUILD_OPTIONS", ""))
    values = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    buildah("bud", "--isolation=chroot", *more, *values, "--file", dockerfile, "--tag", tag, context)
    return tag


def base_image() -> dict[str, str]:
    """The argument of builds that names the base; skips the test if it is not to be had."""
    (default,) = re.findall(r"^ARG BASE=(.*)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    base = os.environ.get("IMAGE_BASE", default)
    try:
        buildah("rm", buildah("from", base))
    except AssertionError as error:
        pytest.skip(f"the base is not to be had, another may be named by IMAGE_BASE: {error}")
    return {"BASE": base}


def size_of(image: str) -> int:
    """The bytes of an image's files."""
    with mounted(image) as root:
        return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def settings_of(image: str) -> dict[str, Any]:
    """What the image says of its user, its command, and so on."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    return found


@contextlib.contextmanager
def mounted(image: str) -> Iterator[Path]:
    """The files of a new container."""
    container = buildah("from", image)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


class Container:
    """A container that runs.

    Args:
        root: Its files.
        pod: The pod whose volumes and variables it gets.
        command: What it runs in place of the image's command, behind the entry point.
        variables: More variables.
    """

    def __init__(self, root: Path, pod: Pod, *command: str, **variables: str) -> None:
        self._pod = pod
        environment = {"PATH": "/opt/venv/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1", **pod.environment, **variables}
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
                *("sh", "-c", _SCRIPT, "sh", root, "tini", "--", *command),
            ],
            env={
                **os.environ,
                "ID": str(UID),
                "VOLUMES": " ".join(mount["mountPath"] for mount in pod.container["volumeMounts"]),
                "VARIABLES": " ".join(f"{name}={value}" for name, value in environment.items()),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def first(self) -> psutil.Process:
        """Its process 1."""
        (child,) = wait_until(psutil.Process(self.process.pid).children, what="the container's first process")
        return child

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its process 1, as Kubernetes does."""
        self.first.send_signal(number)

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
