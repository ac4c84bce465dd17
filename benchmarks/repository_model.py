"""The workloads as a model of a repository: `model.py` of this project's and of NVIDIA's Python backend."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Computes the workload for one request after the other, or sends requests to the model that does."""

    def initialize(self, args: dict[str, str]) -> None:
        """Look up the workload."""
        parameters = json.loads(args["model_config"])["parameters"]
        folder, workload, bls = (parameters[key]["string_value"] for key in ("folder", "workload", "bls"))
        sys.path.append(folder)
        from workloads import STREAM, WORKLOADS

        self.workload = workload
        if workload != STREAM:
            self.function = WORKLOADS[workload].function()
        if bls:
            self.serve: Any = self._send
        elif workload == STREAM:
            self.serve = self._stream
        else:
            self.serve = self._compute_together if workload == "network" else self._compute

    def execute(self, requests: list[Any]) -> Any:
        """Serve the requests of a batch."""
        return self.serve(requests)

    def _compute_together(self, requests: list[Any]) -> list[Any]:
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        outputs = self.function(np.concatenate(arrays))
        starts = np.cumsum([len(array) for array in arrays])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in np.split(outputs, starts)]

    def _compute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", self.function(array))]))
        return responses

    def _send(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "x")
            inner = pb_utils.InferenceRequest(model_name=self.workload, requested_output_names=["y"], inputs=[tensor])
            response = inner.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            output = pb_utils.get_output_tensor_by_name(response, "y")
            responses.append(pb_utils.InferenceResponse([output]))
        return responses

    def _stream(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "count").as_numpy()
            for number in range(int(count[0, 0])):
                output = pb_utils.Tensor("y", np.full((1, 1), number, np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
