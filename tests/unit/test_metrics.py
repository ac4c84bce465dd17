"""Definitions of metrics, and the updates that are sent."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.metrics import Counter, Gauge, Histogram
from pytriton.proxy.services.metric_values import Families, FamilySpec, HistogramValue, MetricValue, Sent
from pytriton.proxy.wire.service import MetricKind, MetricOperation

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"unit_metric_{next(_numbers)}"


def value_of(kind: MetricKind, *buckets: float) -> MetricValue:
    families = Families(lambda value: None)
    return families.value(families.define(FamilySpec(kind, "a", "", (), buckets)), ())


def test_counters_end_in_total_once(name: str) -> None:
    assert repr(Counter(name, "")) == repr(Counter(f"{name}_total", "")) == f"Counter('{name}_total')"


def test_the_same_definition_is_the_same_metric(name: str) -> None:
    Counter(name, "Some", ["a"]).labels("x").inc(2)
    again = Counter(name, "Some", ("a",)).labels(a="x")
    again.inc()
    assert again._get().value == 3


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda name: Gauge(f"{name}_total", ""), ("a counter with a", "a gauge with no labels")),
        (lambda name: Counter(name, "", ["b"]), ("a counter with a", "a counter with b")),
    ],
)
def test_another_definition_names_both(name: str, other: object, words: tuple[str, str]) -> None:
    Counter(name, "", ["a"])
    with pytest.raises(PyTritonBadParameterError, match=f"metric '{name}_total' is {words[0]}.*{words[1]}"):
        other(name)  # type: ignore[operator]


def test_another_definition_of_buckets_names_both(name: str) -> None:
    Histogram(name, "", buckets=[1, 2])
    with pytest.raises(PyTritonBadParameterError, match=r"buckets \[1.0, 2.0\] already.*buckets \[1.0, 3.0\]"):
        Histogram(name, "", buckets=[1, 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gauge("no-good", ""), "rename it, for instance 'no_good'"),
        (lambda: Gauge("1st", ""), "rename it, for instance '_1st'"),
        (lambda: Gauge("nv_mine", ""), "use a prefix of your own"),
        (lambda: Gauge("pytriton_mine", ""), "use a prefix of your own"),
        (lambda: Gauge("a", "", ["no-good"]), "the label 'no-good'"),
        (lambda: Gauge("a", "", ["__name"]), "the label '__name'"),
        (lambda: Gauge("a", "", ["b", "b"]), "a label is repeated"),
        (lambda: Gauge("a", "", "b"), r"use a list, \['b'\]"),
        (lambda: Histogram("a", "", ["le"]), "reserved for histograms: rename yours"),
        (lambda: Histogram("a", "", buckets=[2, 1]), "ascending upper bounds"),
        (lambda: Histogram("a", "", buckets=[]), "one or more"),
        (lambda: Histogram("a", "", buckets=[math.inf]), "one or more"),
    ],
)
def test_names_that_prometheus_refuses_are_refused_with_the_remedy(make: object, message: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match=message):
        make()  # type: ignore[operator]


def test_invalid_values_are_refused(name: str) -> None:
    counter = Counter(name, "")
    with pytest.raises(PyTritonBadParameterError, match=r"cannot grow by -1: use a Gauge"):
        counter.inc(-1)
    with pytest.raises(PyTritonBadParameterError, match="use a finite number"):
        counter.inc(math.nan)
    with pytest.raises(PyTritonBadParameterError, match="use a finite number"):
        Histogram(f"{name}_h", "").observe(math.inf)


def test_labels_must_match_the_declared_ones(name: str) -> None:
    gauge = Gauge(name, "", ["a", "b"])
    with pytest.raises(PyTritonBadParameterError, match=r"has the labels \['a', 'b'\]: call labels\(\)"):
        gauge.inc()
    for wrong in (lambda: gauge.labels("x"), lambda: gauge.labels(a="x"), lambda: gauge.labels("x", b="y")):
        with pytest.raises(PyTritonBadParameterError, match=r"give each of \['a', 'b'\] one value"):
            wrong()
    with pytest.raises(PyTritonBadParameterError, match="it has none"):
        Gauge(f"{name}_bare", "").labels("x")
    assert repr(gauge.labels(b=2, a=1)) == f"Gauge('{name}', a='1', b='2')"


def test_blocks_are_timed_and_counted_while_they_run(name: str) -> None:
    gauge, histogram = Gauge(name, ""), Histogram(f"{name}_seconds", "")
    with gauge.track_inprogress(), histogram.time():
        assert gauge._get().value == 1
    assert gauge._get().value == 0
    assert sum(histogram._get()._counts) == 1


def test_metrics_may_be_pickled_with_the_functions_that_use_them(name: str) -> None:
    for metric in (Counter(name, "", ["a"]).labels("x"), Gauge(f"{name}_g", ""), Histogram(f"{name}_h", "", ["b"])):
        assert repr(pickle.loads(pickle.dumps(metric))) == repr(metric)


def test_a_server_gets_missing_updates() -> None:
    value = value_of(MetricKind.COUNTER)
    first, second = Sent(1), Sent(2)
    value.add(2)
    assert value.updates(first) == [(1, MetricOperation.INCREMENT, 2, 1)]
    value.add(3)
    assert value.updates(first) == [(1, MetricOperation.INCREMENT, 3, 1)]
    assert value.updates(first) == []
    assert value.updates(second) == [(2, MetricOperation.INCREMENT, 5, 1)]


def test_a_set_gauge_is_sent_as_its_value() -> None:
    value = value_of(MetricKind.GAUGE)
    sent = Sent(1)
    value.set(4)
    value.add(-1)
    assert value.updates(sent) == [(1, MetricOperation.SET, 3, 1)]
    value.add(-1)
    assert value.updates(sent) == [(1, MetricOperation.INCREMENT, -1, 1)]
    value.set(2)
    assert value.updates(sent) == [(1, MetricOperation.SET, 2, 1)]


def test_observations_of_a_bucket_are_sent_as_their_mean() -> None:
    value = value_of(MetricKind.HISTOGRAM, 1, 2)
    assert isinstance(value, HistogramValue)
    sent = Sent(1)
    for observed in (1, 1.25, 1.75, 5):
        value.observe(observed)
    assert value.updates(sent) == [
        (1, MetricOperation.OBSERVE, 1, 1),
        (1, MetricOperation.OBSERVE, 1.5, 2),
        (1, MetricOperation.OBSERVE, 5, 1),
    ]
    value.observe(1.5)
    assert value.updates(sent) == [(1, MetricOperation.OBSERVE, 1.5, 1)]


def test_rounding_moves_no_observation_to_another_bucket() -> None:
    bounds = (0.1, 0.3)
    value = value_of(MetricKind.HISTOGRAM, *bounds)
    assert isinstance(value, HistogramValue)
    sent = Sent(1)
    for _ in range(1000):
        for bound in bounds:
            value.observe(bound)
            value.observe(math.nextafter(bound, math.inf))
        means = [update.value for update in value.updates(sent)]
        assert means[0] <= 0.1 < means[1] <= 0.3 < means[2]


def test_a_change_is_signalled_once_until_it_is_collected() -> None:
    changed: list[MetricValue] = []
    families = Families(changed.append)
    value = families.value(families.define(FamilySpec(MetricKind.GAUGE, "a", "", (), ())), ())
    value.add(1)
    assert changed == [value]
    value.is_due = False
    value.add(1)
    value.add(1)
    assert changed == [value, value]
