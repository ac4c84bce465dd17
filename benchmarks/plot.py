"""Draws the plot of the comparison with matplotlib, in an environment of its own, as SVG and PNG."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from environments import environment, run_command

_PANELS = [
    ("HTTP, 16 float32, 1 at a time", "http/tiny/1/1/throughput"),
    ("HTTP, 16 float32, 64 at a time", "http/tiny/64/1/throughput"),
    ("HTTP, 3×224×224 float32, 64 at a time", "http/image/64/1/throughput"),
    ("gRPC, 16 float32, 64 at a time", "grpc/tiny/64/1/throughput"),
]
# From Okabe and Ito's palette, whose colors differ in lightness too, so that color-blind readers can tell them apart.
BLUE, GREY, INK = "#0072b2", "#c4c9cf", "#1f2328"


def draw(results: dict[str, Any], folder: Path, cache: Path, base_python: Path) -> None:
    """Draw throughput of all contenders.

    Args:
        results: as `compare.py` stores them.
        folder: where ``benchmark.svg`` and ``benchmark.png`` go; ``results.json`` is there.
        cache: folder that keeps the environment with matplotlib between runs.
        base_python: interpreter to make it with.

    Raises:
        SetupError: if matplotlib does not install, or fails.
    """
    if not any(_bars(results, key) for _, key in _PANELS):
        return
    python, _ = environment(cache / "plot", base_python, ["matplotlib"])
    run_command([str(python), __file__, str(folder / "results.json"), str(folder)])


def _bars(results: dict[str, Any], key: str) -> list[tuple[str, list[float]]]:
    """Return the contenders' names with their numbers of all rounds, the best last."""
    found = {
        name: [numbers[key] for numbers in each["rounds"] if key in numbers]
        for name, each in results["contenders"].items()
    }
    return sorted(((name, numbers) for name, numbers in found.items() if numbers), key=lambda bar: _median(bar[1]))


def _median(numbers: list[float]) -> float:
    return statistics.median(numbers)


def _draw(results: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "pytriton", "font.size": 10, "text.color": INK})
    panels = [(title, bars) for title, key in _PANELS if (bars := _bars(results, key))]
    rows = (len(panels) + 1) // 2
    figure, axes = pyplot.subplots(
        rows,
        min(2, len(panels)),
        figsize=(12, 1.2 + 3.2 * rows),
        squeeze=False,
        facecolor="white",
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (title, bars), axis in zip(panels, axes.flat, strict=False):
        _draw_panel(axis, title, bars, results["contenders"])
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.12)
    where = results["machine"]
    is_once = results["rounds"] == results["main_rounds"] == 1
    bars_are = "Bars: one round" if is_once else "Bars: medians; lines: lowest to highest"
    figure.suptitle("Requests per second, one model that returns its input", fontsize=13, fontweight="bold")
    figure.supxlabel(
        f"Blue: this project. Hatched: a bound, not a contender. {bars_are}.\n"
        f"{where['processor']}, {where['cores']} cores shared with the load; {where['date']}",
        fontsize=9,
    )
    figure.savefig(folder / "benchmark.svg", metadata={"Date": None})
    figure.savefig(folder / "benchmark.png", dpi=120)


def _draw_panel(axis: Any, title: str, bars: list[tuple[str, list[float]]], contenders: dict[str, Any]) -> None:
    medians = [_median(numbers) for _, numbers in bars]
    spans = [[_median(numbers) - min(numbers) for _, numbers in bars], [max(n) - _median(n) for _, n in bars]]
    drawn = axis.barh(
        [contenders[name]["title"].replace("`", "") for name, _ in bars],
        medians,
        xerr=spans if any(len(numbers) > 1 for _, numbers in bars) else None,
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
        color=[BLUE if name in ("ours", "repository") else GREY for name, _ in bars],
    )
    for patch, label, (name, numbers) in zip(drawn, axis.get_yticklabels(), bars, strict=True):
        axis.text(
            max(numbers), patch.get_y() + patch.get_height() / 2, f"  {_median(numbers):,.0f}", va="center", fontsize=9
        )
        if name in ("ours", "repository"):
            label.set_fontweight("bold")
        if contenders[name]["bound"]:
            patch.set(facecolor="white", edgecolor=INK, hatch="///")
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlim(0, max(max(numbers) for _, numbers in bars) * 1.18)
    axis.locator_params(axis="x", nbins=5)
    axis.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    axis.grid(axis="x", color="#e5e8eb")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


if __name__ == "__main__":
    _draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
