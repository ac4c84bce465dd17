"""The main function of a worker process that serves an instance of a bound model."""

from __future__ import annotations

import pickle

from pytriton.decorators.ordering import check_infer_func
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.wire.control import OrderMessage
from pytriton.proxy.worker.execution_mode import check_kind
from pytriton.proxy.worker.loaded_model import Loaded
from pytriton.proxy.worker.process_main import run_worker


def main(leash_fd: int) -> None:
    """Runs the worker process.

    Args:
        leash_fd: The file descriptor of its control channel.
    """
    run_worker(leash_fd, load)


def load(order: OrderMessage) -> Loaded:
    """Makes the inference callable of a bound model; in its process.

    Args:
        order: With the payload of a plan.
    """
    spec, factory, args, kwargs = pickle.loads(order.payload)
    infer_func = factory(*args, **kwargs)
    check_kind(infer_func, spec)
    check_infer_func(infer_func, spec)
    close = getattr(infer_func, "close", None)
    return Loaded(infer_func, Signature(spec), close if callable(close) else _nothing)


def _nothing() -> None:
    pass
