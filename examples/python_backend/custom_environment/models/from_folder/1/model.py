"""Computes digits of pi with mpmath, and returns the versions that it runs on."""

from __future__ import annotations

import platform

import mpmath
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Serves pi."""

    def initialize(self, args: dict[str, str]) -> None:
        """Collects the versions."""
        versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}", f"mpmath {mpmath.__version__}"]
        self.versions = pb_utils.Tensor("VERSIONS", np.array(versions, np.object_))

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Responds to each request with as many digits as it asks for."""
        responses = []
        for request in requests:
            digits = pb_utils.get_input_tensor_by_name(request, "DIGITS").as_numpy().item()
            with mpmath.workdps(digits + 5):
                pi = mpmath.nstr(mpmath.pi, digits)
            output = pb_utils.Tensor("PI", np.array([pi], np.object_))
            responses.append(pb_utils.InferenceResponse([output, self.versions]))
        return responses
