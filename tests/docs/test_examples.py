"""The examples run as their README says."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import tritonclient.grpc
from example_programs import ROOT, line_with, run, running

ADD_SUB = ROOT / "examples" / "add_sub"
PROCESSES = ROOT / "examples" / "process_instances"


def test_quickstart_prints_results_of_both_protocols_and_how_to_keep_it_running() -> None:
    printed = run(ADD_SUB / "quickstart.py")
    for protocol in ("http", "grpc"):
        assert f"tritonclient.{protocol}: add = [[11.0, 22.0, 33.0]], sub = [[-9.0, -18.0, -27.0]]" in printed
    shown = re.search(r"^python (examples/add_sub/quickstart.py) --serve --http-port (\d+)$", printed, re.MULTILINE)
    assert shown is not None, printed
    assert f"curl -s http://127.0.0.1:{shown[2]}/v2/models/AddSub/infer" in printed


def test_quickstart_serves_the_curl_line_that_it_prints() -> None:
    with running(ADD_SUB / "quickstart.py", "--serve") as process:
        curl = line_with(process, r"^curl .*").group()
        response = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=30, check=True).stdout
    assert '"data":[11.0,22.0,33.0]' in response


def test_server_responds_to_the_client() -> None:
    with running(ADD_SUB / "server.py") as process:
        serving = line_with(process, r"http://127\.0\.0\.1:(\d+), grpc://127\.0\.0\.1:(\d+)")
        printed = run(ADD_SUB / "client.py", f"--http-url=127.0.0.1:{serving[1]}", f"--grpc-url=127.0.0.1:{serving[2]}")
    assert printed.count("add: [[11.0, 22.0, 33.0]]") == 2


@pytest.mark.parametrize("processes", [0, 2])
def test_primes_are_counted_in_as_many_processes_as_wanted(processes: int) -> None:
    with running(PROCESSES / "server.py", f"--processes={processes}") as server:
        url = line_with(server, r"grpc://(127\.0\.0\.1:\d+)")[1]
        with tritonclient.grpc.InferenceServerClient(url) as client:
            while not client.is_model_ready("Primes"):
                time.sleep(0.01)
        printed = run(PROCESSES / "client.py", f"--grpc-url={url}", "--requests=40", "--limit=1000")
    assert "There are 168 primes up to 1000." in printed
    assert len(re.findall(r"Process \d+ served", printed)) == max(processes, 1)


def test_notebook_runs_as_a_program() -> None:
    assert "sub: [[-9.0, -18.0, -27.0]]" in run(ADD_SUB / "notebook.py")


@pytest.mark.parametrize(
    "example",
    sorted([*ADD_SUB.glob("*.py"), *PROCESSES.glob("*.py")]),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_readme_of_the_example_names_each_program(example: Path) -> None:
    assert example.name in (example.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_pool_of_ocr_reads_pictures_while_its_load_changes():
    pytest.importorskip("ray")
    printed = run("scale.py", "--seconds", "8", folder=ROOT / "examples/ocr_on_ray")
    assert re.search(r"8 clients  [12] replicas  +\d+ ms in the queue +[\d.]+/s #", printed), printed
    assert "Pool ocr: RUNNING" in printed
