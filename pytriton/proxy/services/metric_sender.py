"""Sends changed values of the process's metrics to its servers, many in one message."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time

from pytriton.exceptions import PyTritonError, PyTritonInferenceError
from pytriton.proxy.services.client import ServerClient
from pytriton.proxy.services.metric_values import Families, MetricValue, Sent

LOGGER = logging.getLogger(__name__)

INTERVAL_S = 0.1
"""The minimum time between two messages with values, in seconds."""


class _Server:
    """A server that shows the metrics, with the state of each that it has received."""

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self._families: dict[str, int] = {}
        self._sent: dict[MetricValue, Sent] = {}
        self._inherited: dict[MetricValue, Sent] = {}
        self._refused: set[str] = set()
        self.is_new = True

    def succeed(self, other: _Server) -> None:
        """Takes over the state of the same server from a channel that is about to close."""
        self._inherited = other._sent.copy()

    def send(self, values: list[MetricValue]) -> None:
        """Sends all changed values in one message.

        Raises:
            PyTritonInvalidOperationError: The server has exited.
        """
        updates = []
        for value in values:
            name = value.family.name
            if name in self._refused:
                continue
            try:
                updates += value.updates(self._number_of(value))
            except PyTritonInferenceError as error:
                self._refused.add(name)
                LOGGER.warning("The server does not show metric %r: %s", name, error)
        if updates:
            self.client.update_metrics(updates)

    def _number_of(self, value: MetricValue) -> Sent:
        sent = self._sent.get(value)
        if sent is not None:
            return sent
        spec = value.family
        family = self._families.get(spec.name)
        if family is None:
            family = self.client.metric_family(spec.name, spec.documentation, spec.kind)
            self._families[spec.name] = family
        labels = dict(zip(spec.labelnames, value.labels))
        number = self.client.metric(family, labels, spec.buckets)
        sent = self._sent[value] = dataclasses.replace(self._inherited.pop(value, Sent(0)), number=number)
        return sent


class MetricSender:
    """Sends changed values: the first one at once, later ones after `INTERVAL_S` at the latest.

    So a message carries the changes of several batches, and the cost does not grow with their rate. Its thread runs
    while there are a server and a metric.
    """

    def __init__(self) -> None:
        self.families = Families(self._mark)
        """The metrics of the process."""
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._due: list[MetricValue] = []
        self._servers: list[_Server] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, client: ServerClient) -> None:
        """Shows the metrics on a server, until the client is closed."""
        with self._lock:
            self._servers.append(_Server(client))
        if self.families.values():
            self._wake_up()

    def succeed(self, client: ServerClient) -> None:
        """Shows the metrics over the newest channel of the only model instance that this process serves.

        While the instance is being replaced in the same server, the earlier channel is still open.
        """
        with self._lock:
            open_ones = [server for server in self._servers if not server.client.closed]
            server = _Server(client)
            if open_ones:
                server.succeed(open_ones[-1])
            self._servers = [server]
        if self.families.values():
            self._wake_up()

    def detach(self, client: ServerClient) -> None:
        """Forgets a server."""
        with self._lock:
            self._servers = [server for server in self._servers if server.client is not client]
        self._wake.set()

    def after_fork(self) -> None:
        """Forgets the servers, which belong to the parent process."""
        self.families.unlock()
        self._reset()

    def _mark(self, value: MetricValue) -> None:
        with self._lock:
            self._due.append(value)
            is_wanted = bool(self._servers)
        if is_wanted:
            self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()
        if self._thread is not None:
            return
        with self._lock, contextlib.suppress(RuntimeError):  # no thread can start while the interpreter exits
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pytriton-metrics", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                if not self._servers:
                    self._thread = None
                    return
                due, self._due = self._due, []
                servers = list(self._servers)
            for value in due:
                value.is_due = False  # before reading it: a later change is sent next time
            for server in servers:
                self._send(server, due)
            time.sleep(INTERVAL_S)

    def _send(self, server: _Server, due: list[MetricValue]) -> None:
        try:
            server.send(self.families.values() if server.is_new else due)
            server.is_new = False
        except PyTritonError:
            self.detach(server.client)  # it has exited
        except Exception:
            LOGGER.exception("The metrics of this process cannot be sent to the server.")
            self.detach(server.client)


SENDER = MetricSender()
"""The sender of this process."""

os.register_at_fork(after_in_child=SENDER.after_fork)
