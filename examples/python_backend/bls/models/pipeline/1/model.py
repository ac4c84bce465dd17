"""Calls ``add_sub`` twice, the second time with the first results: (a + b) + (a - b)."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model that waits for others."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Responds to each request."""
        return [self.response(request) for request in requests]

    def response(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        """Calls ``add_sub``, and calls it again with the results."""
        first = self.send_request(["OUTPUT0", "OUTPUT1"], request.inputs())
        if first.has_error():
            return first
        added, subtracted = (pb_utils.get_output_tensor_by_name(first, name) for name in ("OUTPUT0", "OUTPUT1"))
        inputs = [pb_utils.Tensor("INPUT0", added.as_numpy()), pb_utils.Tensor("INPUT1", subtracted.as_numpy())]
        second = self.send_request(["OUTPUT0"], inputs)
        if second.has_error():
            return second
        result = pb_utils.get_output_tensor_by_name(second, "OUTPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", result)])

    @staticmethod
    def send_request(outputs: list[str], inputs: list[pb_utils.Tensor]) -> pb_utils.InferenceResponse:
        """Calls ``add_sub``, and waits."""
        request = pb_utils.InferenceRequest(model_name="add_sub", requested_output_names=outputs, inputs=inputs)
        return request.exec()
