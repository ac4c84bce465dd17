"""Judge the curves of `growth.py`, and write them as Markdown.

The exponent of a curve is the slope of the total cost, on logarithmic axes, over the upper half of the
points: 1 is linear, 0 is no growth at all.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from growth_curves import CURVES, Curve, Series
from report import heading, markdown_table

LINEAR = 1.0
TOLERANCE = 0.15
"""How far the exponent of a linear curve may be above 1 in a measurement."""

Values = dict[int, float]
"""Medians by point."""


def exponent(series: Series, values: Values) -> float | None:
    """Return how their total cost grows; None if that is not, or cannot be, judged."""
    if series.kind == "note":
        return None
    positive = {point: value for point, value in values.items() if value > 0}
    if len(positive) < 2:
        return None
    slope = _slope(_upper_half(positive))
    return {"total": slope, "each": LINEAR + slope, "rate": LINEAR - slope}[series.kind]


def _upper_half(values: Values) -> Values:
    """Take the points above the middle of the logarithmic axis, at least two."""
    middle = math.sqrt(min(values) * max(values))
    upper = {point: value for point, value in values.items() if point >= middle}
    return upper if len(upper) > 1 else {point: values[point] for point in sorted(values)[-2:]}


def _slope(values: Values) -> float:
    slope, _ = statistics.linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in values.items()), strict=True))
    return slope


def values_of(series: Series, results: dict[str, Any]) -> Values:
    """Take the medians of a series.

    Args:
        series: which.
        results: of its curve.
    """
    return {
        int(point): statistics.median(found[series.key] for found in rounds)
        for point, rounds in results["points"].items()
        if all(series.key in found for found in rounds)
    }


def is_worse(series: Series, values: Values) -> bool:
    """Return whether a series is worse than linear."""
    found = exponent(series, values)
    return found is not None and found > LINEAR + TOLERANCE


def misses(series: Series, point: int, value: float) -> bool:
    """Return whether a value is beyond the limits of its series."""
    if not series.since <= point <= series.until:
        return False
    return value > (series.at_most or math.inf) or value < (series.at_least or -math.inf)


def faults_of(name: str, results: dict[str, Any]) -> list[str]:
    """Describe what is wrong with a curve."""
    found = results["curves"].get(name)
    if found is None:
        return [f"{name}: was not measured"]
    faults = [f"{name}: failed: {why}" for why in found["failed"]]
    for series in CURVES[name].series:
        values = values_of(series, found)
        if is_worse(series, values):
            faults.append(f"{name}: {series.title}: worse than linear, {exponent(series, values):.2f}")
        faults += [
            f"{name}: {series.title}: {value:.6g} at {point:,}"
            for point, value in values.items()
            if misses(series, point, value)
        ]
    return faults


def report(results: dict[str, Any]) -> str:
    """Write all curves."""
    parts = [_summary(results)]
    for name, curve in CURVES.items():
        if name in results["curves"]:
            parts.append(f"## {_capitalized(curve.title)}\n\n{_section(curve, results['curves'][name])}")
    return "\n\n".join(parts) + "\n"


def rewrite_page(page: Path, results: dict[str, Any]) -> None:
    """Replace the tables of a page, which lie between comments that name them.

    Args:
        page: the file.
        results: of all curves.
    """
    text = page.read_text()
    blocks = {
        name: _section(curve, results["curves"][name]) for name, curve in CURVES.items() if name in results["curves"]
    }
    for name, block in {"summary": _summary(results), **blocks}.items():
        begin, end = f"<!-- growth: {name} -->", "<!-- growth: end -->"
        before, found, after = text.partition(begin)
        if found:
            text = f"{before}{begin}\n\n{block}\n\n{end}{after.partition(end)[2]}"
    page.write_text(text)


def _summary(results: dict[str, Any]) -> str:
    """Write the exponents of all curves."""
    rows = []
    for name, curve in CURVES.items():
        if name not in results["curves"]:
            continue
        found = results["curves"][name]
        judged = [(series, exponent(series, values_of(series, found))) for series in curve.series]
        exponents = ", ".join(
            f"{series.title} {_exponent(series, found)}" for series, each in judged if each is not None
        )
        points = sorted(map(int, found["points"]))
        rows.append([f"{points[0]:,} to {points[-1]:,} {curve.title}" if points else curve.title, exponents])
    return markdown_table(["", "exponents"], rows).replace("---:", "---")


def _section(curve: Curve, found: dict[str, Any]) -> str:
    """Write the table of a curve, where and when it was measured, and what failed."""
    columns = [values_of(series, found) for series in curve.series]
    header = [curve.title, *(series.title for series in curve.series)]
    rows = []
    for point in sorted(map(int, found["points"])):
        cells = [_cell(series, point, values) for series, values in zip(curve.series, columns, strict=True)]
        rows.append([f"{point:,}", *cells])
    rows.append(["**exponent**", *(_exponent(series, found) for series in curve.series)])
    parts = [markdown_table(header, rows), heading(f"`{found['commit']}`", found["rounds"], found["machine"])]
    parts += [f"Failed: {why.splitlines()[0]}" for why in found["failed"]]
    return "\n\n".join(parts)


def _cell(series: Series, point: int, values: Values) -> str:
    if point not in values:
        return ""
    mark = " **!**" if misses(series, point, values[point]) else ""
    return f"{values[point]:,.{series.digits}f}{mark}"


def _exponent(series: Series, found: dict[str, Any]) -> str:
    values = values_of(series, found)
    each = exponent(series, values)
    return "" if each is None else f"{max(each, 0):.2f}{' **!**' if is_worse(series, values) else ''}"


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
