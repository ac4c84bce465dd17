"""Counts down from the number that it is given."""

from __future__ import annotations

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

PAUSE_S = 0.05


class TritonPythonModel:
    """A decoupled model whose coroutines send."""

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Serves the requests concurrently, also with those of other calls."""
        await asyncio.gather(*(self.count_down(request) for request in requests))

    async def count_down(self, request: pb_utils.InferenceRequest) -> None:
        """Sends the responses to one request."""
        sender = request.get_response_sender()
        start = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
        for number in range(start, 0, -1):
            if sender.is_cancelled():
                break
            await asyncio.sleep(PAUSE_S)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[number]], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
