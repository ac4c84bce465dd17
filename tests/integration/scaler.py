"""An inference callable with type hints, for worker processes: they import it from here."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

Rows = Float32[np.ndarray, "batch n"]


class Scaler:
    """Scales numbers, in its own process."""

    def __init__(self, factor: float) -> None:
        self._factor = np.float32(factor)

    def __call__(self, x: Rows) -> Rows:
        return x * self._factor
