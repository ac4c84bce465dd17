"""Programs of users that ``pytriton run`` serves, each in its own folder and process."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

from serving import HOST, OwnProcess, free_ports_environment, wait_until

PROGRAM = pathlib.Path(sys.executable).with_name("pytriton")

TENSORS = """
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

TENSORS = {
    "inputs": [Tensor(name="x", shape=(-1,), dtype=np.float32)],
    "outputs": [Tensor(name="y", shape=(-1,), dtype=np.float32)],
}
"""

SCALE = (
    TENSORS
    + """
triton = Triton()

@batch
def scale(x):
    return [x * FACTOR]

FACTOR = 2
triton.bind("Scale", scale, **TENSORS)
"""
)


class Program(OwnProcess):
    """``pytriton run`` with a program in a folder.

    Args:
        folder: The folder that it runs in.
        words: What stands behind ``pytriton run``.
    """

    def __init__(self, folder, *words, environment=None):
        self.folder = folder
        self._home = tempfile.TemporaryDirectory(prefix="pt-")
        self._log = folder / "stderr.txt"
        self.process = subprocess.Popen(
            [PROGRAM, "run", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            cwd=folder,
            env={
                **os.environ,
                **free_ports_environment(),
                "PYTRITON_HOME": self._home.name,
                "PYTHONFAULTHANDLER": "1",
                **(environment or {}),
            },
        )

    def _clean_up(self):
        self._home.cleanup()

    @property
    def log(self):
        return self._log.read_text()

    def wait_for_log(self, pattern, timeout_s=30):
        """Waits until the log has a line that fits, and returns what the pattern's group holds."""

        def find():
            assert self.process.poll() is None or re.search(pattern, self.log), self.log
            return re.search(pattern, self.log)

        try:
            return wait_until(find, timeout_s, what=f"a line {pattern!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None

    def wait_until_serving(self):
        """Waits until it says where it serves, and returns itself."""
        self.port = int(self.wait_for_log(r"Metrics: .*(?:\n|$)") and re.search(r"http://\w+:(\d+)/v2", self.log)[1])
        return self

    def ask(self, model, values, connection=None):
        """Sends a row of float32, and returns the row of the response, or its error."""
        own = connection or self.connection()
        row = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}
        own.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [row]}))
        reply = json.loads(own.getresponse().read())
        if connection is None:
            own.close()
        return reply["outputs"][0]["data"] if "outputs" in reply else reply["error"]

    def connection(self):
        return http.client.HTTPConnection(HOST, self.port, timeout=60)

    def end(self):
        """Shuts it down cleanly, and returns the exit status."""
        self.process.terminate()
        return self.process.wait(30)


def run_to_end(folder, *words, environment=None):
    """Runs a program that exits by itself: returns the status, and what it has written to standard error."""
    with Program(folder, *words, environment=environment) as program:
        status = program.process.wait(60)
        return status, program.log


class LoadOn(threading.Thread):
    """Sends the number 1 to a model repeatedly, and keeps all responses."""

    def __init__(self, program, model):
        super().__init__(daemon=True)
        self.results, self.errors = [], []
        self._program, self._model, self._done = program, model, threading.Event()
        self.start()

    def run(self):
        connection = self._program.connection()
        try:
            while not self._done.is_set():
                self.results.append(self._program.ask(self._model, [1], connection))
        except Exception as error:
            self.errors.append(error)
        finally:
            connection.close()

    def finish(self):
        self._done.set()
        self.join(60)
