"""Serve Python functions on the NVIDIA Triton Inference Server, from the process they live in.

Examples:
    >>> import numpy as np
    >>> from pytriton import ModelConfig, Tensor, Triton, batch
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

import importlib
from typing import TYPE_CHECKING, Any

from pytriton._environment import check_environment, installed_version

if TYPE_CHECKING:
    from pytriton.client import ModelClient as ModelClient
    from pytriton.decorators import batch as batch
    from pytriton.decorators import sample as sample
    from pytriton.gateway import GatewayConfig as GatewayConfig
    from pytriton.model_config import ModelConfig as ModelConfig
    from pytriton.model_config import Tensor as Tensor
    from pytriton.process import ProcessInstance as ProcessInstance
    from pytriton.triton import Triton as Triton
    from pytriton.triton import TritonConfig as TritonConfig
    from pytriton.type_hints import model as model

    __version__: str

check_environment()

__all__ = [
    "GatewayConfig",
    "ModelClient",
    "ModelConfig",
    "ProcessInstance",
    "Tensor",
    "Triton",
    "TritonConfig",
    "__version__",
    "batch",
    "model",
    "sample",
]

# Imported when they are first used: worker processes import this package, and need little of it.
_MODULES = {
    "GatewayConfig": "gateway",
    "ModelClient": "client",
    "ModelConfig": "model_config",
    "ProcessInstance": "process",
    "Tensor": "model_config",
    "Triton": "triton",
    "TritonConfig": "triton",
    "batch": "decorators",
    "model": "type_hints",
    "sample": "decorators",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
