"""The image: built by buildah, small, and run as Kubernetes would run it."""

from __future__ import annotations

import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import containers
import pytest
from containers import ROOT, UID, Container, mounted
from manifests import DEPLOY, Pod
from serving import HOST, free_ports, wait_until

import pytriton
from pytriton.server.files import own_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("image")]

MEGABYTE = 1_000_000
IMAGE = re.findall(r"^FROM (\S+)", (DEPLOY / "app/Dockerfile").read_text(), re.MULTILINE)[0]


@pytest.fixture(scope="module")
def image() -> str:
    """The image of PyTriton."""
    return containers.build(ROOT / "docker/Dockerfile", IMAGE, ROOT, **containers.base_image())


@pytest.fixture(scope="module")
def app(image: str) -> Iterator[Path]:
    """The files of the image with the program."""
    name = containers.build(DEPLOY / "app/Dockerfile", Pod.of("base").container["image"], DEPLOY / "app")
    with mounted(name) as root:
        yield root


def response_of(port: int, path: str, body: bytes | None = None) -> bytes | None:
    """The response to a request; None if there is none, or an error."""
    try:
        return urllib.request.urlopen(f"http://{HOST}:{port}{path}", body, timeout=10).read()
    except OSError:
        return None


def test_image_has_less_than_450_megabytes(app: Path) -> None:
    assert containers.size_of(Pod.of("base").container["image"]) < 450 * MEGABYTE


def test_image_has_no_compiler_no_pip_and_no_caches(app: Path) -> None:
    for program in ("cc", "gcc", "g++", "c++", "cpp", "as", "ld", "pip", "pip3", "git", "curl", "wget"):
        assert shutil.which(program, path=f"{app}/usr/bin:{app}/usr/local/bin:{app}/opt/venv/bin") is None, program
    assert not list((app / "opt/venv").glob("lib/python3*/site-packages/pip*"))
    for cache in ("root/.cache", "var/lib/apt/lists", "var/cache/apt/archives"):
        assert not [path for path in (app / cache).glob("**/*") if path.is_file()], cache


def test_nothing_in_the_image_belongs_to_its_user(app: Path) -> None:
    places = [app / "opt", app / "app", app / "usr"]
    assert not [path for place in places for path in place.rglob("*") if path.lstat().st_uid == UID]


def test_image_runs_the_command_of_the_pods_as_their_user(app: Path) -> None:
    pod = Pod.of("base")
    settings = containers.settings_of(pod.container["image"])
    assert settings["Entrypoint"] == ["tini", "--"]
    assert settings["Cmd"] == pod.container["args"]
    security = pod.spec["securityContext"]
    assert settings["User"] == f"{security['runAsUser']}:{security['runAsGroup']}" == f"{UID}:{UID}"
    assert settings["ExposedPorts"].keys() == {f"{port}/tcp" for port in pod.ports.values()}


def test_pod_serves_as_its_user_on_a_read_only_root_and_exits_cleanly(app: Path) -> None:
    pod = Pod.of("base")
    gateway, metrics = free_ports(2)
    ports = {str(pod.ports["http"]): str(gateway)}
    command = [ports.get(argument, argument) for argument in pod.container["args"]]
    with Container(app, pod, *command, "--port=0", "--grpc-port=0", f"--metrics-port={metrics}") as container:
        wait_until(lambda: container.process.poll() is not None or response_of(gateway, "/health/ready"), 60)
        assert container.process.poll() is None, container.process.communicate()
        assert response_of(gateway, "/v1/models/Double", b'{"x": [1, 2]}') == b'{"y":[2.0,4.0]}'
        assert b'nv_inference_request_success{model="Double"' in (response_of(metrics, "/metrics") or b"")
        processes = [container.first, *container.first.children(recursive=True)]
        assert {uid for process in processes for uid in process.uids()} == {UID}
        status = Path(f"/proc/{container.first.pid}/status").read_text()
        assert re.findall(r"Cap(?:Prm|Eff|Bnd):\s*(\w+)", status) == ["0" * 16] * 3
        container.send(signal.SIGTERM)
        assert container.process.wait(30) == 0


def test_installation_in_the_image_is_whole(app: Path) -> None:
    with Container(app, Pod.of("base"), "pytriton", "check") as container:
        out, err = container.process.communicate(timeout=60)
        assert container.process.returncode == 0, out + err
        assert "(bundled)" in out


def test_image_can_use_the_server_of_another_image(image: str, tmp_path: Path) -> None:
    # A custom server or NVIDIA's image: here, the bundled one in its own image.
    shutil.copytree(own_files(list(pytriton.__path__)).root, tmp_path / "tritonserver", symlinks=False)
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nUSER root\nCOPY tritonserver /srv/triton\n")
    server = containers.build(tmp_path / "Dockerfile", "pytriton-test-server", tmp_path)
    arguments = {**containers.base_image(), "SERVER": server, "SERVER_PATH": "/srv/triton"}
    own = containers.build(ROOT / "docker/Dockerfile", "pytriton-test-own-server", ROOT, **arguments)
    with mounted(own) as root:
        assert not list(root.glob("opt/venv/lib/python3*/site-packages/pytriton/tritonserver/bin/tritonserver"))
        with Container(root, Pod.of("base"), "pytriton", "check", PYTRITON_SERVER_PATH="/srv/triton") as container:
            out, err = container.process.communicate(timeout=60)
            assert container.process.returncode == 0, out + err
            assert "/srv/triton" in out
