"""Warnings of clients."""

from __future__ import annotations


class PyTritonWarning(UserWarning):
    """The base of the warnings of clients."""


class NotSupportedTimeoutWarning(PyTritonWarning):
    """A timeout has no effect. Clients of this package never warn of that: all their timeouts hold."""
