"""Processes that a model starts with multiprocessing: they import ``model.py``, and what it imports."""

from __future__ import annotations

import pytest
from pb_models import HEAD, TEXT, execute, text_of, write
from worker_models import environment_in, execution_environment

# What a new process says of the classes, and of a request that it sends.
CHILD = """
import concurrent.futures
import multiprocessing
import sys

import c_python_backend_utils as c_utils


def describe(number):
    tensor = pb_utils.Tensor("y", np.array([number], np.float32))
    response = pb_utils.InferenceResponse([tensor])
    values = response.output_tensors()[0].as_numpy().tolist()
    return [values, isinstance(tensor, c_utils.Tensor), refusal()]


def refusal():
    try:
        pb_utils.is_model_ready("any")
    except pb_utils.TritonModelException as error:
        return str(error)


def prefix():
    return sys.prefix


def put(queue, number):
    queue.put(describe(number))
"""
HEAD_WITH_CHILD = HEAD.replace("\n\nclass TritonPythonModel", f"{CHILD}\n\nclass TritonPythonModel")
IN_A_POOL = """
context = multiprocessing.get_context({method!r})
with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
    described = pool.submit(describe, 7).result(60)
return [text(described) for _ in requests]
"""
IN_A_PROCESS = """
context = multiprocessing.get_context({method!r})
queue = context.Queue()
process = context.Process(target=put, args=(queue, 7))
process.start()
described = queue.get(timeout=60)
process.join()
return [text(described) for _ in requests]
"""
DESCRIBED = [
    [7.0],
    True,
    "there is no server to send requests to from here: do so in the model's process, not in one that it has started",
]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("body", [IN_A_POOL, IN_A_PROCESS], ids=["pool", "process"])
def test_a_child_process_runs_a_function_of_the_model(triton, repository, name, method, body):
    folder = write(triton, repository, name, HEAD_WITH_CHILD, execute(body.format(method=method)), whole=TEXT)
    assert text_of(triton, name) == DESCRIBED
    assert [path.name for path in folder.iterdir()] == ["model.py"]  # the repository is as it was


def test_a_child_process_runs_in_the_models_environment(triton, repository, name, tmp_path):
    environment = environment_in(tmp_path / "environment")
    body = execute(IN_A_POOL.format(method="spawn").replace("describe, 7", "prefix"))
    write(triton, repository, name, HEAD_WITH_CHILD, body, whole=TEXT + execution_environment(environment))
    assert text_of(triton, name) == str(environment)


def test_the_import_path_has_the_models_folders_and_modules_for_child_processes(triton, repository, name):
    body = "import sys\nreturn [text([sys.path, os.listdir(sys.path[-1])]) for _ in requests]"
    folder = write(triton, repository, name, HEAD, execute(body), whole=TEXT)
    path, last = text_of(triton, name)
    assert path.index(str(folder)) < path.index(str(folder.parent))
    assert set(last) - {"__pycache__"} == {"triton_python_backend_utils.py", "c_python_backend_utils.py"}
