"""Custom metrics, on the server's metrics endpoint.

Define them where you define the function, and use them wherever its code runs: in threads, coroutines, and processes of
instances. The names are those of Prometheus' own client.

Examples:
    >>> from pytriton.metrics import Counter, Histogram
    >>> TOKENS = Counter("tokens", "Tokens generated", ["finish_reason"])
    >>> LENGTHS = Histogram("prompt_tokens", "Tokens in a prompt", buckets=[16, 64, 256, 1024])
    >>> TOKENS.labels("stop").inc(17)
    >>> LENGTHS.observe(120)
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.proxy.services.metric_sender import SENDER
from pytriton.proxy.services.metric_values import FamilySpec, HistogramValue, MetricValue
from pytriton.proxy.wire.service import MetricKind

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Counter", "Gauge", "Histogram"]

DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of a histogram's buckets by default: times in seconds."""


class _Metric:
    """The common base of counters, gauges and histograms."""

    _KIND: ClassVar[MetricKind]

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), buckets: Sequence[float] = ()
    ) -> None:
        if isinstance(labelnames, str):
            raise PyTritonBadParameterError(
                f"metric {name!r}: its labelnames are {labelnames!r}: use a list, [{labelnames!r}]"
            )
        spec = FamilySpec(self._KIND, str(name), str(documentation), tuple(labelnames), tuple(buckets))
        self._spec = SENDER.families.define(spec)
        self._value: MetricValue | None = None
        if not self._spec.labelnames:
            self._value = SENDER.families.value(self._spec, ())

    def labels(self, *values: object, **by_name: object) -> Self:
        """Returns the metric for values of its labels.

        Args:
            *values: A value for each label, in the order of the labels. Values are converted to strings.
            **by_name: Alternatively, the values by label name.

        Raises:
            PyTritonBadParameterError: A label has no value, or there is no such label.

        Examples:
            >>> REQUESTS = Counter("labelled_requests", "Requests by language", ["language"])
            >>> REQUESTS.labels("de").inc()
            >>> REQUESTS.labels(language="en").inc()
        """
        names = self._spec.labelnames
        if by_name and not values and by_name.keys() == set(names):
            values = tuple(by_name[name] for name in names)
        elif by_name or len(values) != len(names) or not names:
            given = [*map(repr, values), *(f"{name}={value!r}" for name, value in by_name.items())]
            raise PyTritonBadParameterError(
                f"metric {self._spec.name!r} got the labels ({', '.join(given)}): "
                + (f"give each of {list(names)} one value" if names else "it has none, so do not call labels()")
            )
        return self._of(tuple(map(str, values)))

    def _of(self, labels: tuple[str, ...]) -> Self:
        metric = type(self).__new__(type(self))
        metric._spec = self._spec
        metric._value = SENDER.families.value(self._spec, labels)
        return metric

    def _get(self) -> Any:
        if self._value is None:
            raise PyTritonBadParameterError(
                f"metric {self._spec.name!r} has the labels {list(self._spec.labelnames)}: "
                "call labels() with their values first"
            )
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        """Metrics may be pickled, with functions that refer to them: another process has values of its own."""
        return _restore, (type(self), self._spec, self._value.labels if self._value is not None else None)

    def __repr__(self) -> str:
        labels = self._value.labels if self._value is not None else ()
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._spec.labelnames, labels, strict=False))
        return f"{type(self).__name__}({self._spec.name!r}{', ' if shown else ''}{shown})"


def _restore(kind: type[_Metric], spec: FamilySpec, labels: tuple[str, ...] | None) -> _Metric:
    metric = kind.__new__(kind)
    metric._spec = SENDER.families.define(spec)
    metric._value = None if labels is None else SENDER.families.value(metric._spec, labels)
    return metric


def _number(value: float, metric: _Metric) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise PyTritonBadParameterError(f"metric {metric._spec.name!r} cannot take {value!r}: use a finite number")
    return number


class Counter(_Metric):
    """A number that only grows: requests, tokens, errors.

    Args:
        name: The name on the metrics endpoint, where it ends in ``_total``, which is added if it is missing.
        documentation: One line of help.
        labelnames: Names of its labels.

    Raises:
        PyTritonBadParameterError: The name or a label cannot be used, or the name has another definition.

    Examples:
        >>> HITS = Counter("cache_hits", "Requests served from the cache")
        >>> HITS.inc()
    """

    _KIND = MetricKind.COUNTER

    def __init__(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> None:
        super().__init__(f"{str(name).removesuffix('_total')}_total", documentation, labelnames)

    def inc(self, amount: float = 1) -> None:
        """Adds to the counter.

        Args:
            amount: How much, from 0.

        Raises:
            PyTritonBadParameterError: The amount is negative or not finite.
        """
        if amount < 0:
            raise PyTritonBadParameterError(
                f"metric {self._spec.name!r} cannot grow by {amount!r}: use a Gauge for a value that also falls"
            )
        self._get().add(_number(amount, self))


class Gauge(_Metric):
    """A number that rises and falls: the size of a cache, a temperature.

    Several processes share the gauge: all their calls of ``inc`` and ``dec`` add up, and the last ``set`` wins.

    Args:
        name: The name on the metrics endpoint.
        documentation: One line of help.
        labelnames: Names of its labels.

    Raises:
        PyTritonBadParameterError: The name or a label cannot be used, or the name has another definition.

    Examples:
        >>> ENTRIES = Gauge("cache_entries", "Entries in the cache")
        >>> ENTRIES.set(100)
        >>> ENTRIES.dec(3)
    """

    _KIND = MetricKind.GAUGE

    def __init__(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> None:
        super().__init__(name, documentation, labelnames)

    def set(self, value: float) -> None:
        """Sets the gauge.

        Args:
            value: The new value, also for all other processes with this gauge.

        Raises:
            PyTritonBadParameterError: The value is not finite.
        """
        self._get().set(_number(value, self))

    def inc(self, amount: float = 1) -> None:
        """Adds to the gauge.

        Raises:
            PyTritonBadParameterError: The amount is not finite.
        """
        self._get().add(_number(amount, self))

    def dec(self, amount: float = 1) -> None:
        """Subtracts from the gauge.

        Raises:
            PyTritonBadParameterError: The amount is not finite.
        """
        self._get().add(-_number(amount, self))

    @contextlib.contextmanager
    def track_inprogress(self) -> Iterator[None]:
        """Counts the executions of a block of code that are in progress: 1 more at its start, 1 less at its end.

        Examples:
            >>> DOWNLOADS = Gauge("downloads", "Downloads in progress")
            >>> with DOWNLOADS.track_inprogress():
            ...     pass
        """
        self.inc()
        try:
            yield
        finally:
            self.dec()


class Histogram(_Metric):
    """A distribution of numbers: sizes, times, scores.

    Args:
        name: The name on the metrics endpoint.
        documentation: One line of help.
        labelnames: Names of its labels.
        buckets: Ascending upper bounds of the buckets; by default, for times from 5 ms to 10 s, in seconds.

    Raises:
        PyTritonBadParameterError: The name, a label or a bucket cannot be used, or the name has another definition.

    Examples:
        >>> SCORES = Histogram("scores", "Scores of answers", buckets=[0.25, 0.5, 0.75])
        >>> SCORES.observe(0.6)
    """

    _KIND = MetricKind.HISTOGRAM

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        buckets: Sequence[float] = DEFAULT_BUCKETS,
    ) -> None:
        bounds = tuple(float(bound) for bound in buckets)
        super().__init__(name, documentation, labelnames, bounds[:-1] if bounds[-1:] == (math.inf,) else bounds)

    def observe(self, value: float) -> None:
        """Adds a number to the distribution.

        Args:
            value: The number, in the unit of the buckets.

        Raises:
            PyTritonBadParameterError: The value is not finite.
        """
        histogram = self._get()
        assert isinstance(histogram, HistogramValue)
        histogram.observe(_number(value, self))

    @contextlib.contextmanager
    def time(self) -> Iterator[None]:
        """Observes how long a block of code takes, in seconds.

        Examples:
            >>> QUERIES = Histogram("query_seconds", "Time of a query")
            >>> with QUERIES.time():
            ...     pass
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - start)
