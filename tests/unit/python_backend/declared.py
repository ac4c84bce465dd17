"""Configurations of models, as Triton writes them."""

from __future__ import annotations


def tensor(name, data_type="TYPE_FP32", dims=(-1,), **more):
    """One input or output."""
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def config_of(inputs=None, outputs=None, *, max_batch_size=8, decoupled=False, **more):
    """A whole configuration."""
    return {
        "name": "m",
        "backend": "python",
        "max_batch_size": max_batch_size,
        "input": [tensor("x")] if inputs is None else inputs,
        "output": [tensor("y")] if outputs is None else outputs,
        "model_transaction_policy": {"decoupled": decoupled},
        "default_model_filename": "",
        **more,
    }
