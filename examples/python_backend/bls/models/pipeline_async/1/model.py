"""Calls ``add_sub`` twice at the same time: (a + b) * (b - a)."""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model that serves other requests while it waits for others."""

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Serves the requests concurrently."""
        return list(await asyncio.gather(*map(self.reply, requests)))

    async def reply(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        """Calls ``add_sub`` twice, and waits for both responses."""
        a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
        added, subtracted = await asyncio.gather(self.send_request("OUTPUT0", a, b), self.send_request("OUTPUT1", b, a))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", added * subtracted)])

    @staticmethod
    async def send_request(output: str, a: object, b: object) -> object:
        """Calls ``add_sub``."""
        inputs = [pb_utils.Tensor("INPUT0", a), pb_utils.Tensor("INPUT1", b)]
        response = await pb_utils.InferenceRequest("add_sub", [output], inputs).async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()
