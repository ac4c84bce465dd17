"""The example notebook, and the behavior of kernels that docs/notebook.md describes."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import nbclient
import nbformat
import numpy as np
import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.model_spec import ModelSpec
from pytriton.notebook import curl
from pytriton.server.config import ENVIRONMENT_PREFIX
from pytriton.triton import Triton, TritonConfig

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "notebook" / "digits.ipynb"
TIMEOUT_S = 60
TRITON = """
import numpy as np
import tritonclient.http

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig

triton = Triton(config=TritonConfig(http_address="127.0.0.1", grpc_address="127.0.0.1"))


def bind(function):
    tensor = Tensor(name="x", dtype=np.float32, shape=(-1,))
    triton.bind("Model", batch(function), inputs=[tensor], outputs=[tensor])
    triton.run()


def ask():
    tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.config.http_port}") as client:
        return client.infer("Model", [tensor]).as_numpy("x").tolist()
"""

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module", autouse=True)
def separate_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels use free ports, and neither read nor write the settings of the user."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            environment.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        for name in ("HTTP", "GRPC", "METRICS"):
            environment.setenv(f"{ENVIRONMENT_PREFIX}{name}_PORT", "0")
        yield


@pytest.fixture(scope="module")
def executed(separate_jupyter: None) -> Any:
    """The example, with the outputs of its cells; an error in one of them is raised here."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbclient.NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3").execute(cwd=str(EXAMPLE.parent))
    return notebook


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Run]]:
    """A kernel with a `Triton`: its manager, and a function that runs a cell and returns its outputs.

    That function takes another, which is called with each output as it comes.
    """
    manager, client = start_new_kernel(startup_timeout=TIMEOUT_S, kernel_name="python3", cwd=str(tmp_path))

    def run(code: str, watch: Callable[[Any], None] = lambda output: None) -> list[Any]:
        outputs: list[Any] = []

        def take(output: Any) -> None:
            outputs.append(output)
            watch(output)

        client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=take)
        return [each for each in outputs if each["msg_type"] not in ("status", "execute_input")]

    try:
        assert run(TRITON) == []
        yield manager, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def interrupts(manager: Any) -> Callable[[Any], None]:
    """Interrupts the kernel when a cell prints; only once, since what it prints may come in pieces."""
    interrupted = threading.Event()

    def watch(output: Any) -> None:
        if output["msg_type"] == "stream" and not interrupted.is_set():
            interrupted.set()
            manager.interrupt_kernel()

    return watch


def text_of(outputs: list[Any], name: str) -> str:
    return "".join(each["content"]["text"] for each in outputs if each["content"].get("name") == name)


def result_of(outputs: list[Any]) -> str:
    (result,) = (each["content"]["data"]["text/plain"] for each in outputs if each["msg_type"] == "execute_result")
    return str(result)


def cell_of(notebook: Any, name: str) -> Any:
    (cell,) = (cell for cell in notebook.cells if cell.id == name)
    return cell


def shown_in(cell: Any) -> str:
    """The HTML that the cell ends with."""
    (html,) = (output.data["text/html"] for output in cell.outputs if output.output_type == "execute_result")
    return str(html)


def printed_in(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_example_is_committed_without_outputs() -> None:
    for cell in nbformat.read(EXAMPLE, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_example_runs_without_a_line_of_the_log(executed: Any) -> None:
    said = [output for cell in executed.cells for output in cell.get("outputs", []) if output.output_type == "stream"]
    assert {output.name for output in said} == {"stdout"}
    assert sum(len(output.text.splitlines()) for output in said) == 4


def test_example_shows_what_is_served(executed: Any) -> None:
    html = shown_in(cell_of(executed, "bind"))
    for shown in ("Digits", "READY", "image: FP32 (8, 8)", "digit: INT64 (1,)", "curl -s http://127.0.0.1:"):
        assert shown in html


def test_example_gets_better_without_a_restart(executed: Any) -> None:
    before, after = (
        float(re.findall(r"([\d.]+)% of 450", printed_in(cell_of(executed, name)))[0]) for name in ("ask", "improve")
    )
    assert 80 < before < after


def test_example_stops_its_server_at_the_end(executed: Any) -> None:
    assert "The server is not running" in shown_in(cell_of(executed, "stop"))


def test_output_of_a_callable_appears_below_the_running_cell(kernel: tuple[Any, Run]) -> None:
    _, run = kernel
    run("def double(x):\n    print('called')\n    return [2 * x]\nbind(double)")
    outputs = run("ask()")
    assert text_of(outputs, "stdout") == "called\n"
    assert result_of(outputs) == "[[2.0, 2.0]]"


def test_error_in_a_callable_has_a_traceback_that_points_into_the_cell(kernel: tuple[Any, Run]) -> None:
    _, run = kernel
    run("def fail(x):\n    return [x / undefined]\nbind(fail)")
    outputs = run("ask()")
    assert "return [x / undefined]" in text_of(outputs, "stderr")
    (error,) = (each["content"] for each in outputs if each["msg_type"] == "error")
    assert "model 'Model': NameError: name 'undefined' is not defined" in error["evalue"]


PROCESS = """
import os
from pytriton.process import ProcessInstance

FACTOR = 2

class Multiply:
    @batch
    def __call__(self, x):
        return [x * FACTOR + (0 if os.getpid() != {kernel} else 1)]

tensor = Tensor(name="x", dtype=np.float32, shape=(-1,))
triton.bind("Model", ProcessInstance(Multiply), inputs=[tensor], outputs=[tensor])
triton.run()
"""


def test_functions_of_cells_run_in_a_process_that_interrupts_do_not_reach(
    kernel: tuple[Any, Run],
) -> None:
    manager, run = kernel
    pid = result_of(run("import os; os.getpid()"))
    assert run(PROCESS.format(kernel=pid)) == []
    run(
        "print('waiting', flush=True)\nimport time; time.sleep(60)",
        interrupts(manager),
    )
    assert result_of(run("ask()")) == "[[2.0, 2.0]]"
    run(PROCESS.format(kernel=pid).replace("FACTOR = 2", "FACTOR = 3"))
    assert result_of(run("ask()")) == "[[3.0, 3.0]]"


def test_interrupting_a_cell_leaves_the_server_alone(kernel: tuple[Any, Run]) -> None:
    manager, run = kernel
    run("bind(lambda x: [x])")
    outputs = run(
        "import threading\nprint('waiting', flush=True)\nthreading.Event().wait()",
        interrupts(manager),
    )
    assert outputs[-1]["content"]["ename"] == "KeyboardInterrupt"
    assert result_of(run("ask()")) == "[[1.0, 1.0]]"


def test_server_exits_with_the_kernel(kernel: tuple[Any, Run]) -> None:
    manager, run = kernel
    run("triton.run()")
    server = psutil.Process(int(result_of(run("import psutil; psutil.Process().children()[0].pid"))))
    assert server.name() == "tritonserver"
    manager.shutdown_kernel(now=True)
    server.wait(TIMEOUT_S)


def test_a_cell_that_runs_again_takes_over_the_ports(kernel: tuple[Any, Run]) -> None:
    _, run = kernel
    ports = "".join(f"{name}=triton.config.{name}, " for name in ("http_port", "grpc_port", "metrics_port"))
    cell = TRITON.replace("TritonConfig(", f"TritonConfig({ports}") + "bind(lambda x: [factor * x])"
    assert run("factor = 2\nbind(lambda x: [factor * x])\nfirst = triton") == []

    outputs = run("factor = 3\n" + cell)
    assert text_of(outputs, "stdout") == ""
    assert "is stopped, because this one takes its place" in text_of(outputs, "stderr")
    assert result_of(run("first.is_alive(), triton.is_alive(), ask()")) == "(False, True, [[3.0, 3.0]])"


TENSORS = {
    "vector": Tensor((-1,), np.float32, "x"),
    "scalar": Tensor((), np.int64, "x"),
    "flags": Tensor((2, 2), np.bool_, "x"),
    "text": Tensor((-1,), bytes, "it's an \"input\" 'of' \u00fcmlauts"),
    "image": Tensor((224, 224, 3), np.uint8, "x"),
    "long_text": Tensor((100,), bytes, "x"),
    "half": Tensor((-1,), np.float16, "x"),
    "brain": Tensor((-1,), ml_dtypes.bfloat16, "x"),
}


@pytest.mark.parametrize("batching", [True, False], ids=["batching", "alone"])
def test_server_responds_to_the_requests_that_are_shown(batching: bool) -> None:
    config = ModelConfig(batching=batching)
    with Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0)) as triton:
        for name, tensor in TENSORS.items():
            triton.bind(name, lambda requests: requests, [tensor], [tensor], config=config)
        triton.run()
        for name, tensor in TENSORS.items():
            line = curl(ModelSpec.create(name, [tensor], [tensor], config=config), _url_of(triton))
            out = subprocess.run(["sh", "-c", line], capture_output=True, timeout=30, check=True).stdout
            assert out.startswith(b'{"model_name":"%b"' % name.encode()), line


STREAMED = {"vector": TENSORS["vector"], "scalar": TENSORS["scalar"], "flag": Tensor((1,), np.bool_, "x")} | {
    "text": Tensor((1,), bytes, 'it\'s an "input"')
}


@pytest.mark.parametrize("batching", [True, False], ids=["batching", "alone"])
def test_server_streams_to_the_requests_that_are_shown(batching: bool) -> None:
    config = ModelConfig(batching=batching, decoupled=True)

    def twice(requests: Any) -> Iterator[Any]:
        yield requests
        yield requests

    with Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0)) as triton:
        for name, tensor in STREAMED.items():
            triton.bind(name, twice, [tensor], [tensor], config=config)
        triton.run()
        for name, tensor in STREAMED.items():
            line = curl(ModelSpec.create(name, [tensor], [tensor], config=config), _url_of(triton))
            out = subprocess.run(["sh", "-c", line], capture_output=True, timeout=30, check=True).stdout
            assert out.count(b"data: {") == out.count(b'"model_name":"%b"' % name.encode()) == 2, (
                line,
                out,
            )


@pytest.mark.parametrize("name", ["image", "half"])
def test_no_request_is_shown_where_a_stream_cannot_carry_it(name: str) -> None:
    spec = ModelSpec.create(name, [TENSORS[name]], [TENSORS["vector"]], config=ModelConfig(decoupled=True))
    assert curl(spec, "http://127.0.0.1:8000") == ""


def _url_of(triton: Triton) -> str:
    return f"http://127.0.0.1:{triton.config.http_port}"
