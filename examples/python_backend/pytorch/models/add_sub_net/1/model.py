"""Adds and subtracts its inputs with PyTorch."""

from __future__ import annotations

import torch
import triton_python_backend_utils as pb_utils


class AddSubNet(torch.nn.Module):
    """Adds and subtracts."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes tensors of the same shape."""
        return a + b, a - b


class TritonPythonModel:
    """Serves AddSubNet, on the GPU that the instance has, if it has one."""

    def initialize(self, args: dict[str, str]) -> None:
        """Makes the module."""
        is_gpu = args["model_instance_kind"] == "GPU" and torch.cuda.is_available()
        self.device = torch.device(f"cuda:{args['model_instance_device_id']}" if is_gpu else "cpu")
        self.net = AddSubNet().to(self.device).eval()

    @torch.inference_mode()
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Responds to each request."""
        responses = []
        for request in requests:
            a, b = (
                torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)).to(self.device)
                for name in ("INPUT0", "INPUT1")
            )
            added, subtracted = self.net(a, b)
            outputs = [
                pb_utils.Tensor.from_dlpack("OUTPUT0", added),
                pb_utils.Tensor.from_dlpack("OUTPUT1", subtracted),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
