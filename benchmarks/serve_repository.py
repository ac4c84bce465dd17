"""Serve a workload from a model repository with a `tritonserver`: a backend for Python files, or the baseline."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

from serve import model_names, ready_paths, serve_command, workload_parser
from workloads import MAX_BATCH_SIZE, STREAM, WORKLOADS

_FOLDER = Path(__file__).parent


def main() -> None:
    """Serve until standard input closes."""
    arguments = workload_parser(__doc__)
    arguments.add_argument("--server", required=True, help="how to start it; {repository} stands for the repository")
    arguments.add_argument("--backend-directory", help="where the server finds its backends")
    arguments.add_argument("--backend", default="python")
    arguments.add_argument("--bls", action="store_true", help="add a model that calls the workload's by BLS")
    options = arguments.parse_args()
    models = model_names(options.workload, options.models)

    with tempfile.TemporaryDirectory() as repository:
        for model in models:
            _write_model(Path(repository, model), options.workload, options.backend, options.instances)
        if options.bls:
            models.append(f"{options.workload}_bls")
            _write_model(Path(repository, models[-1]), options.workload, options.backend, 1, bls=True)

        command = [word.replace("{repository}", repository) for word in shlex.split(options.server)]
        command += ["--http-address=127.0.0.1", f"--http-port={options.http_port}"]
        command += ["--grpc-address=127.0.0.1", f"--grpc-port={options.grpc_port}"]
        command += [f"--metrics-port={options.metrics_port}", "--exit-on-error=true"]
        if options.backend_directory:
            command.append(f"--backend-directory={options.backend_directory}")
        serve_command(options.http_port, ready_paths(models), command)


def _write_model(folder: Path, workload_name: str, backend: str, instances: int, *, bls: bool = False) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    if backend == "python":
        shutil.copy(_FOLDER / "repository_model.py", version / "model.py")
    streams = workload_name == STREAM
    if streams:
        name, kind, dims, output_dims = "count", "INT32", [1], [1]
    else:
        workload = WORKLOADS[workload_name]
        name, kind = "x", "STRING" if workload.datatype == "BYTES" else workload.datatype
        dims, output_dims = list(workload.shape), list(workload.output_shape)
    (folder / "config.pbtxt").write_text(
        f'backend: "{backend}"\n'
        f"max_batch_size: {MAX_BATCH_SIZE}\n"
        f'input [{{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}]\n'
        f'output [{{ name: "y" data_type: TYPE_{kind} dims: {output_dims} }}]\n'
        f"instance_group [{{ count: {instances} kind: KIND_CPU }}]\n"
        "dynamic_batching {}\n"
        + ("model_transaction_policy { decoupled: true }\n" if streams else "")
        + f'parameters {{ key: "folder" value {{ string_value: "{_FOLDER}" }} }}\n'
        f'parameters {{ key: "workload" value {{ string_value: "{workload_name}" }} }}\n'
        f'parameters {{ key: "bls" value {{ string_value: "{"yes" if bls else ""}" }} }}\n'
    )


if __name__ == "__main__":
    main()
