"""A model's own metrics, on the server's metrics endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonError
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.server import server_client
from pytriton.python_backend.texts import text_of


class MetricFamily:
    """Metrics of one name, which differ in their labels.

    Args:
        name: A name that is valid in Prometheus: ``"requests_with_an_image_total"``.
        description: One line of help.
        kind: ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.

    Raises:
        TritonModelException: The server cannot create it, or has one of another kind.
    """

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException(
                f"metric family {name!r} has kind {kind!r}: use MetricFamily.COUNTER, GAUGE or HISTOGRAM"
            )
        from pytriton.proxy.wire.service import MetricKind

        self._kind = kind
        self._server_client = server_client()
        with _as_model_exceptions():
            self._number = self._server_client.metric_family(
                text_of(name, "a metric family's name"), text_of(description, "its description"), MetricKind(kind)
            )

    def Metric(  # noqa: N802  (the name that models know)
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Returns a metric of the family, the same one for the same labels. It is deleted with its last reference.

        Args:
            labels: Labels by name.
            buckets: Upper bounds of a histogram's buckets, ascending.

        Raises:
            TritonModelException: The server cannot create it; a label is not text; a histogram lacks buckets, or
                another kind has some.
        """
        if (buckets is not None) != (self._kind == self.HISTOGRAM):
            raise TritonModelException("buckets are required for a HISTOGRAM, and not allowed for other metrics")
        return Metric(self, _checked(labels or {}), buckets)

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            with contextlib.suppress(PyTritonError):
                self._server_client.delete_metric_family(number)


class Metric:
    """One metric; made by `MetricFamily.Metric`.

    Args:
        family: Its family.
        labels: Labels by name.
        buckets: Upper bounds.
    """

    def __init__(self, family: MetricFamily, labels: Mapping[str, str], buckets: Sequence[float] | None) -> None:
        self._family = family
        self._server_client = family._server_client
        with _as_model_exceptions():
            self._number = self._server_client.metric(family._number, labels, buckets)

    def increment(self, value: float) -> None:
        """Adds to a counter or a gauge.

        Raises:
            TritonModelException: A counter would shrink, or it is a histogram.
            TypeError: The value is not a number.
        """
        with _as_model_exceptions():
            self._server_client.increment(self._number, _as_float(value))

    def set(self, value: float) -> None:
        """Sets a gauge.

        Raises:
            TritonModelException: It is not a gauge.
            TypeError: The value is not a number.
        """
        with _as_model_exceptions():
            self._server_client.set(self._number, _as_float(value))

    def observe(self, value: float) -> None:
        """Adds an observation to a histogram.

        Raises:
            TritonModelException: It is not a histogram.
            TypeError: The value is not a number.
        """
        with _as_model_exceptions():
            self._server_client.observe(self._number, _as_float(value))

    def value(self) -> float:
        """Returns the value of a counter or a gauge.

        Raises:
            TritonModelException: It is a histogram.
        """
        with _as_model_exceptions():
            return self._server_client.value(self._number)
        raise AssertionError  # the context manager above raises, or nothing does

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            with contextlib.suppress(PyTritonError):
                self._server_client.delete_metric(number)


def _checked(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Returns labels as strings, converted from bytes if necessary."""
    try:
        return {text_of(name, "a label's name"): text_of(value, f"label {name!r}") for name, value in labels.items()}
    except (TypeError, ValueError) as error:
        raise TritonModelException(str(error)) from None


def _as_float(value: Any) -> float:
    if isinstance(value, (float, int)):
        return value
    if not hasattr(value, "__float__"):  # those of NumPy and PyTorch have it
        raise TypeError(f"a metric's value is {value!r}, of type {type(value).__name__}: use a number")
    return float(value)


@contextlib.contextmanager
def _as_model_exceptions() -> Any:
    try:
        yield
    except PyTritonError as error:
        raise TritonModelException(str(error)) from error
