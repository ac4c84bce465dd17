"""Runs a pod's program on this machine with every file system read-only but the pod's volumes."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from manifests import DEPLOY, Pod
from serving import HOST, free_ports, wait_until

# In its own mount namespace: tmpfs where the volumes are, and all other mounts read-only. The volume /tmp goes to
# another folder, which HOME and TMPDIR name, because this package may lie below /tmp.
_SCRIPT = """
set -e
tmp=$1; shift
mount -t tmpfs tmpfs "$tmp"
mount -t tmpfs tmpfs /dev/shm
awk '{ print $5 }' /proc/self/mountinfo | while read -r folder; do
  case "$folder" in
    "$tmp"|/dev*|/proc*) ;;
    *) mount -o remount,bind,ro "$folder" 2>/dev/null || true ;;
  esac
done
cd "$(dirname "$0")"
exec "$@"
"""


class RunningPod:
    """A pod's container, as a program that runs.

    Attributes:
        gateway: The port of its gateway.
        metrics: The port of its metrics.
        process: The process.
        tmp: Its volume for temporary files.
    """

    def __init__(self, pod: Pod, tmp: Path, app: Path, **variables: str) -> None:
        self.gateway, self.metrics = free_ports(2)
        self.tmp = tmp
        ports = {str(pod.ports["http"]): str(self.gateway), str(pod.ports["metrics"]): str(self.metrics)}
        program, *arguments = (ports.get(argument, argument) for argument in pod.container["args"])
        variables = {**{name: ports.get(value, value) for name, value in pod.environment.items()}, **variables}
        folders = dict.fromkeys((name for name, value in variables.items() if value == "/tmp"), str(tmp))
        self.process = subprocess.Popen(
            [
                *("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"),
                *("sh", "-c", _SCRIPT, app, tmp),
                *(Path(sys.executable).with_name(program), *arguments),
                *("--port", "0", "--grpc-port", "0"),
            ],
            env={"PATH": os.environ["PATH"], **variables, **folders, "TMPDIR": str(tmp), "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def request(self, port: int, path: str, body: str | None = None) -> tuple[int, str]:
        """Sends a request, and returns status and body of the response."""
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def status(self, path: str) -> int | None:
        """The status of a response of the gateway; None if there is no response."""
        assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
        try:
            return self.request(self.gateway, path)[0]
        except OSError:
            return None

    def wait_until_ready(self, path: str) -> None:
        """Waits for the probe's success."""
        wait_until(lambda: self.status(path) == 200, 30, what=f"status 200 at {path}")

    def has(self, name: str) -> bool:
        """Whether its volume for temporary files has a file of this name."""
        return Path(f"/proc/{self.process.pid}/root{self.tmp / name}").exists()

    def processes(self) -> list[psutil.Process]:
        """Its processes."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def stop(self) -> int:
        """Stops it as Kubernetes does, and returns its exit status."""
        self.process.terminate()
        return self.process.wait(30)


@contextlib.contextmanager
def running(pod: Pod, tmp: Path, app: Path = DEPLOY / "app" / "app.py", **variables: str) -> Iterator[RunningPod]:
    """A pod with a program and replaced variables; it is stopped at the end.

    It skips the test where namespaces are not allowed.
    """
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    allowed = subprocess.run(command, capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"this user may not mount: {allowed.stderr.decode().strip()}")
    program = RunningPod(pod, tmp, app, **variables)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()
