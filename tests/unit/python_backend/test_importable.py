"""The modules of a worker process, in an interpreter that only has the worker's import path."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from pytriton.python_backend.loader import _IMPORTABLE

TENSOR = """
import {first}, {second}, numpy as np
tensor = triton_python_backend_utils.Tensor("x", np.ones(2, np.float32))
assert isinstance(tensor, c_python_backend_utils.Tensor)
print(tensor.as_numpy().tolist())
"""
REFUSAL = """
import triton_python_backend_utils as pb_utils
try:
    {call}
except pb_utils.TritonModelException as error:
    print(error)
"""


@pytest.fixture
def only_numpy(tmp_path):
    """A folder with NumPy, and nothing else that is installed."""
    package = pathlib.Path(np.__file__).parent
    for folder in [package, *package.parent.glob("numpy.libs")]:
        (tmp_path / folder.name).symlink_to(folder)
    return tmp_path


def run(code, *folders):
    """Runs code with these folders behind those of the standard library; returns what it prints."""
    start = f"import sys; sys.path += {[str(folder) for folder in folders]}\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("first", ["triton_python_backend_utils", "c_python_backend_utils"])
def test_they_do_not_need_the_package(only_numpy, first):
    second = {"c_python_backend_utils": "triton_python_backend_utils"}.get(first, "c_python_backend_utils")
    assert run(TENSOR.format(first=first, second=second), only_numpy, _IMPORTABLE) == "[1.0, 1.0]"


def test_they_are_those_of_the_package_if_it_is_installed(only_numpy):
    package = pathlib.Path(_IMPORTABLE).parents[2]
    code = """
import triton_python_backend_utils, pytriton
from pytriton.python_backend import triton_python_backend_utils as ours
print(triton_python_backend_utils is ours, pytriton.__name__, bool(pytriton.__file__))
"""
    assert run(code, only_numpy, package, _IMPORTABLE) == "True pytriton True"


def test_another_package_of_that_name_does_no_harm(only_numpy):
    (only_numpy / "pytriton").mkdir()
    (only_numpy / "pytriton" / "__init__.py").write_text("raise ImportError('another one')")
    code = TENSOR.format(first="triton_python_backend_utils", second="c_python_backend_utils")
    assert run(code, only_numpy, _IMPORTABLE) == "[1.0, 1.0]"


def test_another_package_of_that_name_may_have_been_imported_before(only_numpy):
    (only_numpy / "pytriton" / "proxy").mkdir(parents=True)
    (only_numpy / "pytriton" / "__init__.py").write_text("NAME = 'another'")
    (only_numpy / "pytriton" / "proxy" / "__init__.py").touch()
    code = TENSOR.format(first="triton_python_backend_utils", second="c_python_backend_utils")
    before = "import pytriton.proxy\nanother = pytriton\n"
    assert run(f"{before}{code}print(another.NAME)", only_numpy, _IMPORTABLE) == "[1.0, 1.0]\nanother"


def test_a_models_own_copy_comes_first(only_numpy):
    (only_numpy / "triton_python_backend_utils.py").write_text("NAME = 'own'")
    assert run("import triton_python_backend_utils as u; print(u.NAME)", only_numpy, _IMPORTABLE) == "own"


@pytest.mark.parametrize(
    "call",
    [
        "pb_utils.InferenceRequest(model_name='m', requested_output_names=['y'], inputs=[]).exec()",
        "pb_utils.MetricFamily('seen_total', 'Seen', pb_utils.MetricFamily.COUNTER)",
        "pb_utils.load_model('m')",
        "pb_utils.unload_model('m')",
        "pb_utils.is_model_ready('m')",
    ],
)
def test_features_that_need_the_server_are_refused(only_numpy, call):
    assert run(REFUSAL.format(call=call), only_numpy, _IMPORTABLE) == (
        "there is no server to send requests to from here: do so in the model's process, not in one that it has started"
    )
