"""The comparison's picture: drawn by matplotlib in an environment of its own, as SVG and PNG."""

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


def draw(results: dict[str, Any], folder: Path, cache: Path, base_python: Path) -> None:
    """Draw throughput of all contenders.

    Args:
        results: as `compare.py` keeps them.
        folder: where ``benchmark.svg`` and ``benchmark.png`` go.
        cache: folder that keeps the environment with matplotlib from run to run.
        base_python: interpreter to make it with.

    Raises:
        SetupError: if matplotlib does not install.
    """
    python, _ = environment(cache / "plot", base_python, ["matplotlib"])
    file = folder / "plot.json"
    file.write_text(json.dumps(results))
    run_command([str(python), __file__, str(file), str(folder)], cwd=Path(__file__).parent)
    file.unlink()


def _draw(results: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "pytriton"
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 6.5))
    for (title, key), axis in zip(_PANELS, axes.flat, strict=True):
        bars = [
            (each["title"], statistics.median(found), name == "ours")
            for name, each in results["contenders"].items()
            if (found := [numbers[key] for numbers in each["rounds"] if key in numbers])
        ]
        bars.sort(key=lambda bar: bar[1])
        drawn = axis.barh(
            [name for name, _, _ in bars],
            [height for _, height, _ in bars],
            color=["#76b900" if is_ours else "#9aa5b1" for _, _, is_ours in bars],
        )
        axis.bar_label(drawn, labels=[f" {height:,.0f}" for _, height, _ in bars], fontsize=8)
        axis.set_title(title, fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.15)
    figure.suptitle("Requests per second, identity, two cores", fontsize=11)
    figure.tight_layout()
    figure.savefig(folder / "benchmark.svg", metadata={"Date": None})
    figure.savefig(folder / "benchmark.png", dpi=120)


if __name__ == "__main__":
    _draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
