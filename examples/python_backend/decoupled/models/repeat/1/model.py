"""Sends back each number that it is given, one after the other."""

from __future__ import annotations

import threading
import time

import triton_python_backend_utils as pb_utils

PAUSE_S = 0.05


class TritonPythonModel:
    """A decoupled model whose threads send."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Starts a thread for each request, and returns immediately."""
        for request in requests:
            threading.Thread(target=self.repeat, args=(request,)).start()

    def repeat(self, request: pb_utils.InferenceRequest) -> None:
        """Sends the responses to one request. Its input stays valid for as long as it is held."""
        sender = request.get_response_sender()
        numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        for position in range(numbers.shape[1]):
            if sender.is_cancelled():
                break
            time.sleep(PAUSE_S)
            output = pb_utils.Tensor("OUT", numbers[:, position : position + 1])
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
