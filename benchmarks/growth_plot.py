"""Draws the plots of `growth.py` with matplotlib, in an environment of its own, as SVG, one file per curve."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

_BLUE, _GREY, _INK = "#0072b2", "#9aa1a9", "#1f2328"
_COLUMNS = 4


def main() -> None:
    """Draw all curves of a file into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "pytriton", "font.size": 9, "text.color": _INK})
    for name, curve in json.loads(Path(sys.argv[1]).read_text()).items():
        _draw(curve, Path(sys.argv[2], f"{name}.svg"))


def _draw(curve: dict[str, Any], file: Path) -> None:
    from matplotlib import pyplot

    panels = [(key, title, kind) for key, title, kind in curve["series"] if kind != "note"]
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3 * columns, 2.5 * rows + 0.3), squeeze=False, facecolor="white", layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (key, title, kind), axis in zip(panels, axes.flat, strict=False):
        _draw_panel(axis, curve["points"], key, title, kind)
    figure.supxlabel(f"{curve['title']}; grey: linear", fontsize=9)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _draw_panel(axis: Any, points: dict[str, list[dict[str, float]]], key: str, title: str, kind: str) -> None:
    found = {int(point): [each[key] for each in rounds if key in each] for point, rounds in points.items()}
    medians = {
        point: statistics.median(values) for point, values in sorted(found.items()) if values and min(values) > 0
    }
    if medians:
        axis.plot(list(medians), list(medians.values()), color=_BLUE, marker="o", markersize=4)
        low, high = zip(*((min(found[point]), max(found[point])) for point in medians), strict=True)
        axis.fill_between(list(medians), low, high, color=_BLUE, alpha=0.2, linewidth=0)
        _draw_linear(axis, medians, kind)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(min(low) / 3, max(high) * 3)
    axis.set_title(title, fontsize=9, loc="left")
    axis.grid(color="#e5e8eb")
    axis.set_axisbelow(True)
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)


def _draw_linear(axis: Any, medians: dict[int, float], kind: str) -> None:
    """Draw what linear growth would be, through the last point."""
    first, last = min(medians), max(medians)
    slope = 1 if kind == "total" else 0
    axis.plot([first, last], [medians[last] * (first / last) ** slope, medians[last]], color=_GREY, linestyle="--")


if __name__ == "__main__":
    main()
