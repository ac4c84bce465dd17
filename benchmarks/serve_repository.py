"""Serve a workload from a model repository with a `tritonserver`: a backend for Python files, or the ceiling."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from serve import model_names, parser, serve
from workloads import MAX_BATCH_SIZE, WORKLOADS

_FOLDER = Path(__file__).parent


def main() -> None:
    """Serve until standard input closes."""
    arguments = parser(__doc__)
    arguments.add_argument("--server", required=True, help="how to start it; {repository} stands for the repository")
    arguments.add_argument("--backend-directory", help="where the server finds its backends")
    arguments.add_argument("--backend", default="python")
    arguments.add_argument("--bls", action="store_true", help="add a model that asks the workload's by BLS")
    options = arguments.parse_args()
    models = model_names(options.workload, options.models)

    with tempfile.TemporaryDirectory() as repository:
        for model in models:
            _write_model(Path(repository, model), options.workload, options.backend, options.instances)
        if options.bls:
            models.append(f"{options.workload}_bls")
            _write_model(Path(repository, models[-1]), options.workload, options.backend, 1, bls=True)

        def start() -> Callable[[], object]:
            command = [word.replace("{repository}", repository) for word in shlex.split(options.server)]
            command += ["--http-address=127.0.0.1", f"--http-port={options.http_port}"]
            command += ["--grpc-address=127.0.0.1", f"--grpc-port={options.grpc_port}"]
            command += [f"--metrics-port={options.metrics_port}", "--exit-on-error=true"]
            if options.backend_directory:
                command.append(f"--backend-directory={options.backend_directory}")
            server = subprocess.Popen(command)

            def stop() -> None:
                server.terminate()
                server.wait()

            return stop

        serve(options.http_port, [f"/v2/models/{model}/ready" for model in models], start)


def _write_model(folder: Path, workload_name: str, backend: str, instances: int, *, bls: bool = False) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    if backend == "python":
        shutil.copy(_FOLDER / "repository_model.py", version / "model.py")
    streams = workload_name == "stream"
    if streams:
        name, datatype, shape, output_shape = "count", "INT32", (1,), (1,)
    else:
        workload = WORKLOADS[workload_name]
        name, datatype, shape, output_shape = "x", workload.datatype, workload.shape, workload.output_shape
    kind = "STRING" if datatype == "BYTES" else datatype
    (folder / "config.pbtxt").write_text(
        f'backend: "{backend}"\n'
        f"max_batch_size: {MAX_BATCH_SIZE}\n"
        f'input [{{ name: "{name}" data_type: TYPE_{kind} dims: {list(shape)} }}]\n'
        f'output [{{ name: "y" data_type: TYPE_{kind} dims: {list(output_shape)} }}]\n'
        f"instance_group [{{ count: {instances} kind: KIND_CPU }}]\n"
        "dynamic_batching {}\n"
        + ("model_transaction_policy { decoupled: true }\n" if streams else "")
        + f'parameters {{ key: "folder" value {{ string_value: "{_FOLDER}" }} }}\n'
        f'parameters {{ key: "workload" value {{ string_value: "{workload_name}" }} }}\n'
        f'parameters {{ key: "bls" value {{ string_value: "{"yes" if bls else ""}" }} }}\n'
    )


if __name__ == "__main__":
    main()
