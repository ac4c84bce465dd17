"""The values of a process's own metrics; `pytriton.metrics` has the public names.

A value is cumulative for the process: a counter's total, not its last increment. So a restarted server, or a second one
of this process, receives the same values as the first.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.proxy.wire.service import MetricKind, MetricOperation, MetricUpdate

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED = ("nv_", "pytriton_")  # prefixes of the server's metrics, and of the built-in ones


class FamilySpec(NamedTuple):
    """The definition of the metrics of one name.

    Attributes:
        kind: Counter, gauge or histogram.
        name: The name on the metrics endpoint.
        documentation: One line of help.
        labelnames: Names of the labels.
        buckets: Ascending upper bounds of a histogram's buckets, without infinity.
    """

    kind: MetricKind
    name: str
    documentation: str
    labelnames: tuple[str, ...]
    buckets: tuple[float, ...]

    def __str__(self) -> str:
        labels = ", ".join(self.labelnames) or "no labels"
        buckets = f" and buckets {list(self.buckets)}" if self.kind is MetricKind.HISTOGRAM else ""
        return f"a {self.kind.name.lower()} with {labels}{buckets}"

    def check(self) -> None:
        """Checks that names are valid for Prometheus.

        Raises:
            PyTritonBadParameterError: A name or a bucket cannot be used.
        """
        where = f"metric {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise PyTritonBadParameterError(
                f"{where}: a name has letters, digits, '_' and ':', and starts with no digit: rename it, for instance "
                f"{_repaired(self.name)!r}"
            )
        if self.name.startswith(_RESERVED):
            raise PyTritonBadParameterError(
                f"{where}: names that start with {' or '.join(map(repr, _RESERVED))} are those of the server: "
                "use a prefix of your own"
            )
        for label in self.labelnames:
            if not _LABEL.fullmatch(label) or label.startswith("__"):
                raise PyTritonBadParameterError(
                    f"{where}: the label {label!r} has a name that Prometheus refuses: use letters, digits and '_', "
                    "with no digit and no '__' at the start"
                )
        if len(set(self.labelnames)) < len(self.labelnames):
            raise PyTritonBadParameterError(f"{where}: a label is repeated in {list(self.labelnames)}: name it once")
        if self.kind is MetricKind.HISTOGRAM:
            if "le" in self.labelnames:
                raise PyTritonBadParameterError(f"{where}: the label 'le' is reserved for histograms: rename yours")
            if not self.buckets or any(low >= high for low, high in zip(self.buckets, self.buckets[1:])):
                raise PyTritonBadParameterError(
                    f"{where}: its buckets are {list(self.buckets)}: use one or more ascending upper bounds"
                )


def _repaired(name: str) -> str:
    repaired = re.sub(r"[^a-zA-Z0-9_:]", "_", name) or "my_metric"
    return f"_{repaired}" if repaired[0].isdigit() else repaired


@dataclasses.dataclass
class Sent:
    """The state of a value that the server has received."""

    number: int
    value: float = 0.0
    sets: int = 0
    counts: list[int] = dataclasses.field(default_factory=list)
    sums: list[float] = dataclasses.field(default_factory=list)


class MetricValue:
    """The value of a counter or a gauge, for one combination of labels. Safe to use from any thread.

    Args:
        family: Its family.
        labels: Values of the labels.
        on_change: Called with this object after a change, unless an earlier change has not been collected yet.
    """

    __slots__ = ("_lock", "_on_change", "_sets", "_value", "family", "is_due", "labels")

    def __init__(self, family: FamilySpec, labels: tuple[str, ...], on_change: Callable[[MetricValue], None]) -> None:
        self.family = family
        self.labels = labels
        self.is_due = True  # initially, so that it is shown as 0
        self._on_change = on_change
        self._lock = threading.Lock()
        self._value = 0.0
        self._sets = 0

    def add(self, amount: float) -> None:
        """Adds to the value."""
        with self._lock:
            self._value += amount
        self._changed()

    def set(self, value: float) -> None:
        """Sets the value."""
        with self._lock:
            self._value = value
            self._sets += 1
        self._changed()

    def _changed(self) -> None:
        if not self.is_due:
            self.is_due = True
            self._on_change(self)

    @property
    def value(self) -> float:
        """The value in this process."""
        return self._value

    def updates(self, sent: Sent) -> list[MetricUpdate]:
        """Returns the updates that a server lacks, and notes them as sent."""
        with self._lock:
            value, sets = self._value, self._sets
        if sets != sent.sets:
            updates = [MetricUpdate(sent.number, MetricOperation.SET, value)]
        elif value != sent.value:
            updates = [MetricUpdate(sent.number, MetricOperation.INCREMENT, value - sent.value)]
        else:
            updates = []
        sent.value, sent.sets = value, sets
        return updates


class HistogramValue(MetricValue):
    """The observations of a histogram, for one combination of labels."""

    __slots__ = ("_counts", "_sums")

    def __init__(self, family: FamilySpec, labels: tuple[str, ...], on_change: Callable[[MetricValue], None]) -> None:
        super().__init__(family, labels, on_change)
        self._counts = [0] * (len(family.buckets) + 1)
        self._sums = [0.0] * (len(family.buckets) + 1)

    def observe(self, value: float) -> None:
        """Adds an observation."""
        index = bisect.bisect_left(self.family.buckets, value)
        with self._lock:
            self._counts[index] += 1
            self._sums[index] += value
        self._changed()

    def updates(self, sent: Sent) -> list[MetricUpdate]:
        """See `MetricValue`; each observation of a bucket is sent as the mean of the bucket's observations."""
        with self._lock:
            counts, sums = self._counts.copy(), self._sums.copy()
        bounds = (-math.inf, *self.family.buckets, math.inf)
        before = zip(sent.counts or [0] * len(counts), sent.sums or [0.0] * len(sums))
        updates = []
        for bucket, (count, total, (old_count, old_total)) in enumerate(zip(counts, sums, before)):
            if count == old_count:
                continue
            mean = (total - old_total) / (count - old_count)
            # Rounding must not move it into another bucket.
            mean = min(max(mean, math.nextafter(bounds[bucket], math.inf)), bounds[bucket + 1])
            updates.append(MetricUpdate(sent.number, MetricOperation.OBSERVE, mean, count - old_count))
        sent.counts, sent.sums = counts, sums
        return updates


class Families:
    """The families of a process, by name.

    Args:
        on_change: Called with each new or changed value.
    """

    def __init__(self, on_change: Callable[[MetricValue], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._specs: dict[str, FamilySpec] = {}
        self._values: dict[tuple[str, tuple[str, ...]], MetricValue] = {}

    def define(self, spec: FamilySpec) -> FamilySpec:
        """Defines a family, or returns an existing one with the same definition.

        Raises:
            PyTritonBadParameterError: A name cannot be used, or the family is defined differently already.
        """
        spec.check()
        with self._lock:
            known = self._specs.setdefault(spec.name, spec)
        if known._replace(documentation="") != spec._replace(documentation=""):
            raise PyTritonBadParameterError(
                f"metric {spec.name!r} is {known} already, and cannot be {spec}, too: rename one of them"
            )
        return known

    def value(self, spec: FamilySpec, labels: Sequence[str]) -> MetricValue:
        """Returns the value for a combination of labels."""
        key = (spec.name, tuple(labels))
        value = self._values.get(key)
        if value is not None:
            return value
        with self._lock:
            value = self._values.get(key)
            if value is None:
                of_kind = HistogramValue if spec.kind is MetricKind.HISTOGRAM else MetricValue
                value = self._values[key] = of_kind(spec, key[1], self._on_change)
                self._on_change(value)
        return value

    def values(self) -> list[MetricValue]:
        """Returns all values."""
        with self._lock:
            return list(self._values.values())

    def unlock(self) -> None:
        """Recreates the locks, in a fork of the process."""
        self._lock = threading.Lock()
        for value in self._values.values():
            value._lock = threading.Lock()
