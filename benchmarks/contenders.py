"""The contenders: what each needs installed, how it is started, and how requests are sent to it."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from environments import (
    NETWORK_REQUIREMENT,
    Contender,
    SetupError,
    environment,
    libpython_folder,
    ours_in,
    prepare_ours,
    prepare_peer,
    run_command,
    site_packages,
)
from load import TOKEN
from workloads import MAX_BATCH_SIZE, NAMES, NETWORK_VARIABLE, STREAM, STREAM_LENGTH, WORKLOADS, stream_request

PROTOCOLS = {
    "kserve": "KServe, binary tensors (HTTP and gRPC)",
    "raw": "raw bytes over HTTP, strings as a JSON list",
    "json": "JSON over HTTP, tensors in base64",
    "json_batch": "JSON over HTTP, a list of one input, tensors in base64",
}
"""How requests are written, by the names that `Server.protocol` has."""

_JSON = ("json", "json_batch")


@dataclass(frozen=True)
class Server:
    """A contender: how it is started and how requests are sent to it.

    Attributes:
        contender: its environment.
        script: the file that serves a workload.
        arguments: what the script is given besides ports and workload.
        protocol: how requests are written, one of `PROTOCOLS`.
        workloads: what it can serve.
        is_bound: whether it is an upper bound for the contenders, not one of them.
        is_restless: whether it takes processor time when idle, and is paused while others are measured.
        note: what a reader of its numbers should know.
    """

    contender: Contender
    script: str
    arguments: list[str] = field(default_factory=list)
    protocol: str = "kserve"
    workloads: tuple[str, ...] = NAMES
    is_bound: bool = False
    is_restless: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """Its name in options and files."""
        return self.contender.name

    @property
    def is_triton(self) -> bool:
        """Whether it has Triton's front ends: KServe over HTTP and gRPC."""
        return self.protocol == "kserve"

    @property
    def has_bls(self) -> bool:
        """Whether it serves a model that calls another one inside the server."""
        return self.script == "serve_repository.py" and not self.is_bound

    def path(self, workload: str) -> str:
        """Return the path to which a workload's requests are sent over HTTP."""
        if not self.is_triton:
            return "/infer" if self.name != "mosec" else "/inference"
        return f"/v2/models/{workload}/{'generate_stream' if workload == STREAM else 'infer'}"

    def request(self, workload: str) -> tuple[bytes, str, int]:
        """Encode a request: its body, the body's type, and the size of the KServe header in it (0: none)."""
        if workload == STREAM:
            return stream_request(), "application/json", 0
        definition = WORKLOADS[workload]
        if self.is_triton:
            body, header_size = definition.kserve()
            return body, "application/octet-stream", header_size
        if self.protocol in _JSON:
            return definition.json(is_batch=self.protocol == "json_batch"), "application/json", 0
        return definition.raw(), "application/json" if definition.datatype == "BYTES" else "application/octet-stream", 0

    def fault(self, workload: str, response: bytes) -> str | None:
        """Say what is wrong with a response's body; None: nothing that shows without computing it again."""
        if workload == STREAM:
            count = response.count(b"data:")
            return None if count == STREAM_LENGTH else f"{count} responses in place of {STREAM_LENGTH}"
        definition = WORKLOADS[workload]
        if workload == "network":
            return None
        if definition.datatype == "BYTES":
            expected = definition.sample()[0, -1]
        else:
            expected = base64.b64encode(definition.raw()) if self.protocol in _JSON else definition.raw()
        return None if expected in response else "something other than the input"


@dataclass(frozen=True)
class Places:
    """Where files are kept, and with which interpreter environments are made.

    Attributes:
        cache: folder that is kept between runs.
        python: interpreter to make virtual environments with.
        ours_python: interpreter of an environment in which this project is already installed; None makes one.
    """

    cache: Path
    python: Path
    ours_python: Path | None = None


def _ours(places: Places) -> Server:
    return Server(_our_environment(places, "ours", "PyTriton"), "serve_pytriton.py")


def _ours_repository(places: Places) -> Server:
    contender = _our_environment(places, "repository", "PyTriton, `model.py`")
    server = shlex.join([str(contender.python.with_name("pytriton")), "serve", "{repository}", f"--token={TOKEN}"])
    return Server(contender, "serve_repository.py", [f"--server={server}"])


def _our_environment(places: Places, name: str, title: str) -> Contender:
    made = ours_in(places.ours_python) if places.ours_python else prepare_ours(places.cache, places.python)
    return Contender(name, title, made.python, made.variables)


def _peer(places: Places) -> Server:
    return Server(prepare_peer(places.cache, places.python), "serve_pytriton.py")


def _nvidia(places: Places) -> Server:
    peer = prepare_peer(places.cache, places.python)
    folder = site_packages(peer.python) / "pytriton" / "tritonserver"
    version = run_command([str(peer.python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    backends = places.cache / "nvidia_backends"
    python = backends / "python"
    if not (python / "triton_python_backend_stub").exists():
        shutil.rmtree(backends, ignore_errors=True)
        shutil.copytree(folder / "backends" / "python", python)
        shutil.copy(folder / "python_backend_stubs" / version / "triton_python_backend_stub", python)
    variables = dict(peer.variables)
    variables["PATH"] = f"{peer.python.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    variables["PYTHONPATH"] = str(site_packages(peer.python))
    libraries = [libpython_folder(places.python), site_packages(peer.python) / "nvidia_pytriton.libs"]
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    contender = Contender("nvidia", "NVIDIA's Python backend", peer.python, variables)
    return Server(contender, "serve_repository.py", [_plain_server(peer), f"--backend-directory={backends}"])


def _baseline(places: Places) -> Server:
    peer = prepare_peer(places.cache, places.python)
    return _baseline_in(_plain_server(peer), "baseline", "Triton alone", places)


def _bundled_baseline(places: Places) -> Server:
    ours = _our_environment(places, "bundled", "")
    guard = _server_file(ours, "libpytriton_guard.so")
    preload = shlex.quote(f"{guard}:{_server_file(ours, 'libmimalloc.so')}")
    tuned = f"env LD_PRELOAD={preload} MIMALLOC_ALLOW_THP=0 MIMALLOC_PURGE_DELAY=10000"
    return _baseline_in(_plain_server(ours, tuned), "bundled", "Triton alone, in the bundled server", places)


def build_baseline(cache: Path) -> Path:
    """Build the C++ backend that returns its input at once.

    Args:
        cache: folder that keeps it.

    Returns:
        The folder of backends that has it.

    Raises:
        SetupError: if there is no compiler, or compiling fails.
    """
    backends = cache / "baseline_backends"
    library = backends / "baseline" / "libtriton_baseline.so"
    source = Path(__file__).with_name("baseline")
    if shutil.which("cmake") is None:
        raise SetupError("the baseline is a backend in C++, and there is no cmake to build it")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=backends) as build:
        run_command(["cmake", "-S", str(source), "-B", build, "-DCMAKE_BUILD_TYPE=Release"])
        run_command(["cmake", "--build", build])
        Path(build, library.name).replace(library)
    return backends


def _baseline_in(server: str, name: str, title: str, places: Places) -> Server:
    backends = build_baseline(places.cache)
    peer = prepare_peer(places.cache, places.python)
    return Server(
        Contender(name, title, peer.python, peer.variables),
        "serve_repository.py",
        [server, f"--backend-directory={backends}", "--backend=baseline"],
        workloads=("tiny", "image", "strings", "large"),
        is_bound=True,
        note="a C++ backend that returns its input at once: a bound, not a contender",
    )


def _plain_server(contender: Contender, prefix: str = "") -> str:
    executable = shlex.quote(str(_server_file(contender, "tritonserver")))
    return f"--server={prefix} {executable} --model-repository={{repository}}"


def _server_file(contender: Contender, name: str) -> Path:
    return site_packages(contender.python) / "pytriton" / "tritonserver" / "bin" / name


def _of_packages(
    name: str,
    title: str,
    requirements: list[str],
    protocol: str,
    note: str,
    workloads: tuple[str, ...] = NAMES,
) -> Callable[[Places], Server]:
    def prepare(places: Places) -> Server:
        wanted = [*requirements, NETWORK_REQUIREMENT, "numpy"]
        python, variables = environment(places.cache / name, places.python, wanted)
        contender = Contender(name, title, python, variables)
        restless = name == "litserve"  # its workers poll for requests
        return Server(
            contender,
            f"serve_{name}.py",
            protocol=protocol,
            workloads=workloads,
            is_restless=restless,
            note=note,
        )

    return prepare


_SOME = ("tiny", "image", "network")
"""The workloads of contenders that are not compared in everything, so that a run does not take too long."""

_LITSERVE_NOTE = f"batches of up to {MAX_BATCH_SIZE} for which it waits 1 ms; `fast_queue` is on"
_MOSEC_NOTE = f"batches of up to {MAX_BATCH_SIZE}; it waits 1 ms to fill one, which is most of its latency at c1"
_FASTAPI_NOTE = "no batches: the model runs in the event loop; uvicorn with uvloop and httptools, no access log"
_BENTOML_NOTE = f"adaptive batches of up to {MAX_BATCH_SIZE}"
_GRANIAN_NOTE = "no framework and no batches: a function of Granian's own interface, RSGI, in the event loop; uvloop"
_ROBYN_NOTE = "no batches: the model runs in the event loop; stopped by SIGKILL, because it ignores SIGTERM"

CONTENDERS: dict[str, Callable[[Places], Server]] = {
    "ours": _ours,
    "repository": _ours_repository,
    "peer": _peer,
    "nvidia": _nvidia,
    "baseline": _baseline,
    "bundled": _bundled_baseline,
    "litserve": _of_packages("litserve", "LitServe", ["litserve>=0.2"], "json", _LITSERVE_NOTE),
    "mosec": _of_packages("mosec", "mosec", ["mosec>=0.9"], "raw", _MOSEC_NOTE),
    "fastapi": _of_packages("fastapi", "FastAPI, uvicorn", ["fastapi", "uvicorn[standard]"], "raw", _FASTAPI_NOTE),
    "bentoml": _of_packages("bentoml", "BentoML", ["bentoml>=1.4"], "json_batch", _BENTOML_NOTE, _SOME),
    "granian": _of_packages("granian", "Granian, RSGI", ["granian[uvloop]>=2"], "raw", _GRANIAN_NOTE),
    "robyn": _of_packages("robyn", "Robyn", ["robyn>=0.70"], "raw", _ROBYN_NOTE, _SOME),
}
"""The functions that prepare each, by name, in the order of the table. They raise SetupError."""


def prepare(names: list[str], places: Places) -> tuple[list[Server], dict[str, str]]:
    """Install contenders.

    Args:
        names: keys of `CONTENDERS`.
        places: where things are kept.

    Returns:
        Those that could be installed, and by name why others could not.
    """
    servers: list[Server] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            servers.append(CONTENDERS[name](places))
        except SetupError as error:
            missing[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr)
    try:
        network = _network_file(places)
    except SetupError as error:
        missing["network"] = str(error)
        return [replace(each, workloads=tuple(set(each.workloads) - {"network"})) for each in servers], missing
    for server in servers:
        server.contender.variables[NETWORK_VARIABLE] = str(network)
    return servers, missing


def _network_file(places: Places) -> Path:
    """Make the network's file, which all contenders compute: 64 inputs, two hidden layers of 256, 10 outputs."""
    file = places.cache / "network.onnx"
    if not file.exists():
        python, _ = environment(places.cache / "onnx", places.python, ["onnx", "numpy"])
        run_command([str(python), str(Path(__file__).with_name("make_network.py")), str(file)])
    return file
