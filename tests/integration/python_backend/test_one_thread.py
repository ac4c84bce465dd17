"""All code of a model runs in one thread, the main thread of its process."""

from __future__ import annotations

import pytest
from serving import send_floats, wait_until
from streaming import streamed
from worker_models import command, state_of, write_model

WITH_THREAD = """
import asyncio
import pathlib
import signal
import sqlite3
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

LOCAL = threading.local()
LOCAL.value = 7
IMPORTED = threading.get_ident()


class TritonPythonModel:
    def initialize(self, args):
        assert threading.get_ident() == IMPORTED == threading.main_thread().ident
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table numbers (number)")
        self.loop = asyncio.get_event_loop() if LOOP else None
        self.log = pathlib.Path(args["model_repository"]) / "finalized"

    DEF execute(self, requests):
        assert threading.get_ident() == IMPORTED
        assert LOCAL.value == 7
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert self.loop is None or self.loop is asyncio.get_running_loop()
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            self.database.execute("insert into numbers values (?)", (float(x.ravel()[0]),))
            (total,) = self.database.execute("select sum(number) from numbers").fetchone()
            y = pb_utils.Tensor("y", np.full(x.shape, total, np.float32))
            responses.append(pb_utils.InferenceResponse([y]))
        RESPOND

    def finalize(self):
        self.database.close()
        self.log.write_text(str(threading.get_ident() == IMPORTED))
"""

SEND = """for request, response in zip(requests, responses):
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"""
DECOUPLED = "model_transaction_policy {decoupled: true}"


@pytest.mark.parametrize("definition", ["def", "async def"])
@pytest.mark.parametrize("decoupled", [False, True], ids=["", "decoupled"])
def test_from_import_to_finalize(triton, repository, name, definition, decoupled):
    code = WITH_THREAD.replace("DEF", definition).replace("LOOP", str(definition == "async def"))
    code = code.replace("RESPOND", SEND if decoupled else "return responses")
    folder = write_model(repository, name, code=code, config=DECOUPLED if decoupled else "")
    assert command(triton, name, "load")[0] == 200
    results = [
        streamed(triton, name, number)[0] if decoupled else send_floats(triton, name, [number]) for number in (1, 2, 3)
    ]
    assert results == [[1], [3], [6]]
    assert command(triton, name, "unload")[0] == 200
    wait_until(lambda: state_of(triton, name) == "UNAVAILABLE")
    log = folder.parent / "finalized"
    wait_until(lambda: log.exists() and log.read_text() == "True")
