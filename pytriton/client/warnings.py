"""Warnings of clients."""

from __future__ import annotations


class PyTritonWarning(UserWarning):
    """Base of the clients' warnings."""


class NotSupportedTimeoutWarning(PyTritonWarning):
    """A timeout has no effect. Clients of this package never emit it: all their timeouts are effective."""
