"""Callables that wait, so that requests gather behind the first one."""

from __future__ import annotations

import threading

import numpy as np
from serving import metrics_of


def row(*values):
    return np.array([values], np.float32)


class Gate:
    """An inference callable that waits, so that requests gather behind its first one."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.batches = []

    def __call__(self, requests):
        self.batches.append([request["x"].ravel().tolist() for request in requests])
        self.entered.set()
        assert self.opened.wait(30)
        return [[request["x"]] for request in requests]


def is_pending(triton, name, count):
    """Whether the server holds that many requests of a model, waiting or being served."""
    return metrics_of(triton, name)["nv_inference_pending_request_count"] >= count


def gathers(expected, batches):
    """Whether requests come in the expected batches; one more try or two, where they do not.

    The server counts a request as pending just before it queues it, so that once in a while the last one comes late.
    """
    return any(batches() == expected for _ in range(3))
