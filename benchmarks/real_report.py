"""Writes the results of `real_models.py` as Markdown and as a plot."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from environments import environment, run_command
from real_functions import MODELS
from report import Results, bullets, failures, heading, left_out, markdown_table, ratio, spread, table, values

_OURS = "pytriton"
_WAITING = "waiting"
_UNBATCHED = "unbatched"
_WAYS = (_OURS, _WAITING, _UNBATCHED)
"""The contenders that are this project's."""
_MOST = 64
"""The concurrency that the first tables show."""

_BEGIN, _END = "<!-- numbers -->", "<!-- end -->"
_PLOT = "real_models"


def write_report(results: Results, folder: Path) -> str:
    """Write ``report.md``.

    Args:
        results: as `real_models.py` stores them.
        folder: where it goes.

    Returns:
        Its text.
    """
    what = f"PyTriton at {results['commit']}; {results['workers']} workers of each server, each on one thread"
    intro = heading(what, results["rounds"], results["machine"])
    parts = [f"{intro} Medians, with the lowest and the highest in brackets; cN: N requests at a time."]
    parts += [f"## {title}\n\n{body}" for title, body in _sections(results) if body]
    text = "\n\n".join(parts) + "\n"
    (folder / "report.md").write_text(text)
    return text


def write_page(page: Path, report: str, folder: Path) -> None:
    """Put a report between the markers of a page, and the plot into the folder ``assets`` beside it."""
    before, _, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{page} lacks the markers {_BEGIN} and {_END}")
    page.write_text(f"{before}{_BEGIN}\n\n{report}\n{_END}{after}")
    for file in (f"{_PLOT}.png", f"{_PLOT}.svg"):
        shutil.copy(folder / file, page.parent / "assets" / file)


def draw(folder: Path, cache: Path, base_python: Path) -> None:
    """Draw PyTriton's throughput relative to others', as SVG and PNG.

    Args:
        folder: has ``results.json``, and takes the plot.
        cache: folder that keeps the environment with matplotlib between runs.
        base_python: interpreter to make it with.
    """
    python, _ = environment(cache / "plot", base_python, ["matplotlib"])
    run_command([str(python), __file__, str(folder)])


def _sections(results: Results) -> list[tuple[str, str]]:
    """Return titles and texts; texts are empty where nothing was measured."""
    models = _measured(results)
    at_most = f"c{_MOST}"
    throughput = [(MODELS[name].title, f"{name}/{_MOST}/throughput", _digits(results, name)) for name in models]
    p99 = [(MODELS[name].title, f"{name}/{_MOST}/p99_ms", 0) for name in models]
    sections = [
        (f"Requests/s, {at_most}", table(results, throughput)),
        (f"99th percentile of the latency, {at_most}, ms", table(results, p99)),
        (f"PyTriton against others, {at_most}", _ratios(results, models)),
        ("What batches gain", _batches(results, models)),
    ]
    for name in models:
        sections.append((f"{MODELS[name].title[0].upper()}{MODELS[name].title[1:]}", _details(results, name)))
    return [
        *sections,
        ("Requests to each server", bullets(_protocols(results))),
        ("Failed", bullets(failures(results))),
        ("Left out", bullets(left_out(results))),
    ]


def _measured(results: Results) -> list[str]:
    keys = {key for each in results["contenders"].values() for found in each["rounds"] for key in found}
    return [name for name in MODELS if any(key.startswith(f"{name}/") for key in keys)]


def _concurrencies(results: Results, model: str) -> list[int]:
    keys = {key for each in results["contenders"].values() for found in each["rounds"] for key in found}
    return sorted({int(key.split("/")[1]) for key in keys if key.startswith(f"{model}/")})


def _digits(results: Results, model: str) -> int:
    """Decimals for requests per second: few where there are many."""
    found = values(results, next(iter(results["contenders"])), f"{model}/{_MOST}/throughput")
    return 0 if not found or min(found) > 100 else 1


def _details(results: Results, model: str) -> str:
    concurrencies = _concurrencies(results, model)
    throughput = [(f"c{c} requests/s", f"{model}/{c}/throughput", 1 if c == 1 else 0) for c in concurrencies]
    latency = [(f"c{c} {name}, ms", f"{model}/{c}/{name}_ms", 1) for c in concurrencies for name in ("p50", "p99")]
    cpu = [(f"c{c} µs of processor per request", f"{model}/{c}/cpu_us", 0) for c in concurrencies]
    return "\n\n".join(filter(None, (table(results, throughput), table(results, latency + cpu))))


def _ratios(results: Results, models: list[str]) -> str:
    """How many times the requests per second, and of the others' p99 the part that a request waits at most."""
    contenders = results["contenders"]
    if _OURS not in contenders:
        return ""
    rows = []
    for other in (name for name in contenders if name not in _WAYS):
        throughputs = [ratio(results, _OURS, other, f"{name}/{_MOST}/throughput") for name in models]
        latencies = [ratio(results, other, _OURS, f"{name}/{_MOST}/p99_ms") for name in models]
        rows.append([f"{contenders[other]['title']}: requests/s", *throughputs])
        rows.append([f"{contenders[other]['title']}: shorter p99", *latencies])
    return markdown_table(["", *(MODELS[name].title for name in models)], rows) if rows else ""


def _batches(results: Results, models: list[str]) -> str:
    """Compare PyTriton with itself without a batcher, and with one that waits."""
    ways = [name for name in _WAYS if name in results["contenders"]]
    if _UNBATCHED not in ways:
        return ""
    rows = []
    for name in models:
        for concurrency in _concurrencies(results, name):
            key = f"{name}/{concurrency}"
            if values(results, _UNBATCHED, f"{key}/throughput"):
                for way in ways:
                    title = f"{MODELS[name].title}, c{concurrency}: {results['contenders'][way]['title']}"
                    rows.append([title, *_gain(results, way, key)])
    header = ["", "requests/s", "of those without batches", "p50, ms", "p99, ms"]
    return markdown_table(header, rows) if rows else ""


def _gain(results: Results, way: str, key: str) -> list[str]:
    throughput, *latencies = (values(results, way, f"{key}/{name}") for name in ("throughput", "p50_ms", "p99_ms"))
    if not throughput:
        return ["", "", "", ""]
    gain = ratio(results, way, _UNBATCHED, f"{key}/throughput") if way != _UNBATCHED else ""
    return [spread(throughput, 0), gain, *(f"{statistics.median(each):,.1f}" for each in latencies)]


def _protocols(results: Results) -> list[str]:
    lines = [
        f"{each['title']}: {each['note']}; {', '.join(' '.join(pair) for pair in each['versions'].items())}."
        for each in results["contenders"].values()
    ]
    return [*lines, f"The load: {', '.join(' '.join(pair) for pair in results['tools'].items())}."]


def _draw(folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from plot import BLUE, GREY, INK

    results = json.loads((folder / "results.json").read_text())
    matplotlib.rcParams.update({"svg.hashsalt": "pytriton", "font.size": 10, "text.color": INK})
    models = _measured(results)
    panels = [("throughput", "requests/s"), ("p99_ms", "p99, ms")]
    figure, axes = pyplot.subplots(
        len(models),
        2,
        figsize=(12, 1.2 + 2.4 * len(models)),
        squeeze=False,
        facecolor="white",
        layout="constrained",
    )
    for name, row in zip(models, axes, strict=True):
        for (key, unit), axis in zip(panels, row, strict=True):
            bars = _bars(results, f"{name}/{_MOST}/{key}", best_is_most=key == "throughput")
            numbers = [number for _, number in bars]
            titles = [results["contenders"][each]["title"] for each, _ in bars]
            colors = [BLUE if each in _WAYS else GREY for each, _ in bars]
            drawn = axis.barh(titles, numbers, color=colors)
            axis.bar_label(drawn, [f"{number:,.0f}" for number in numbers], padding=3, fontsize=9)
            title, *_ = MODELS[name].title.split(" (")
            axis.set_title(f"{title}: {unit}", fontsize=11, loc="left")
            axis.set_xlim(0, max(numbers, default=1) * 1.18)
            axis.grid(axis="x", color="#e5e8eb")
            axis.set_axisbelow(True)
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.tick_params(axis="y", length=0)
    where = results["machine"]
    figure.suptitle(f"Real models, {_MOST} requests at a time", fontsize=13, fontweight="bold")
    figure.supxlabel(
        f"Blue: this project. Medians of the rounds ({results['rounds']}); left: more is better, right: less is.\n"
        f"{where['processor']}, {where['cores']} cores shared with the load; {where['date']}",
        fontsize=9,
    )
    figure.savefig(folder / f"{_PLOT}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{_PLOT}.png", dpi=100)


def _bars(results: dict[str, Any], key: str, *, best_is_most: bool) -> list[tuple[str, float]]:
    """Contenders and their medians, the best last, which is drawn on top."""
    medians = {
        name: statistics.median(found) for name in results["contenders"] if (found := values(results, name, key))
    }
    return sorted(medians.items(), key=lambda bar: bar[1] if best_is_most else -bar[1])


if __name__ == "__main__":
    _draw(Path(sys.argv[1]))
