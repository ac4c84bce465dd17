"""Serve Python functions on the NVIDIA Triton Inference Server, from the process they live in.

Examples:
    >>> import numpy as np
    >>> from pytriton.decorators import batch
    >>> from pytriton.model_config import ModelConfig, Tensor
    >>> from pytriton.triton import Triton
    >>>
    >>> @batch
    ... def double(values):
    ...     return [values * 2]
    >>>
    >>> with Triton() as triton:  # doctest: +SKIP
    ...     triton.bind(
    ...         model_name="Double",
    ...         infer_func=double,
    ...         inputs=[Tensor(name="values", dtype=np.float32, shape=(-1,))],
    ...         outputs=[Tensor(name="doubled", dtype=np.float32, shape=(-1,))],
    ...         config=ModelConfig(max_batch_size=128),
    ...     )
    ...     triton.serve()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton._environment import check_environment, installed_version

if TYPE_CHECKING:
    from pytriton.type_hints import model as model

check_environment()

__version__ = installed_version()

__all__ = ["__version__", "model"]


def __getattr__(name: str) -> Any:
    if name != "model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytriton.type_hints import model  # not above: worker processes import the package, and not all of it

    return model
