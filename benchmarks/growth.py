"""Measure how cost grows: with models, instances, connections, streams, bytes, models in a chain, requests, processes.

Writes a Markdown table for each curve, every number as JSON and plots into a folder; progress goes to stderr. The exit
status is 2 where a curve is worse than linear, or misses its target. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from command import parser, positive, run
from environments import REPOSITORY, SetupError, environment, git_description, run_command
from growth_curves import CURVES, Curve, Setting
from growth_report import faults_of, report, rewrite_page
from load import LoadError, wrk_version
from report import machine
from service import ServiceError

_PAGE = REPOSITORY / "docs" / "growth.md"
_PLOTS = REPOSITORY / "docs" / "assets" / "growth"
_WORSE = 2


def main() -> int:
    """Measure, write the results."""
    options = _parse_arguments()
    file = options.results / "growth.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"curves": {}}
    if not options.report:
        status = run("growth.py", lambda: _measure_all(options, results, file))
        if status:
            return status
    print(report(results))
    try:
        _write(options, results)
    except SetupError as error:
        print(f"growth.py: there are no plots: {error}", file=sys.stderr)
    faults = [line for name in options.only for line in faults_of(name, results)]
    print("\n".join(faults), file=sys.stderr)
    return _WORSE if faults else 0


def _parse_arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=[*CURVES], default=[*CURVES], metavar="NAME", help=", ".join(CURVES))
    made.add_argument("--rounds", type=positive, default=3, help="how often each curve is measured")
    made.add_argument("--seconds", type=positive, default=1, help="of one measurement")
    made.add_argument("--quick", action="store_true", help="for a first impression: few points, one round")
    made.add_argument("--results", type=Path, default=REPOSITORY / "build" / "benchmarks" / "results")
    made.add_argument("--report", action="store_true", help="measure nothing; write what earlier runs have found")
    made.add_argument("--page", action="store_true", help="rewrite the tables and plots of docs/growth.md, too")
    return made.parse_args()


def _measure_all(options: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    wrk_version()
    for name in options.only:
        results["curves"][name] = _measure(CURVES[name], options)
        results["commit"] = git_description()
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part")
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.rename(file)


def _measure(curve: Curve, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one curve; a point where something fails has no numbers, and nor do those after it."""
    setting = Setting(options.seconds, options.cache)
    points = curve.quick if options.quick else curve.points
    rounds = 1 if options.quick else min(options.rounds, curve.rounds)
    found: dict[str, list[dict[str, float]]] = {}
    failed = []
    for number in range(rounds):
        try:
            for point, numbers in curve.measure(setting, points):
                found.setdefault(str(point), []).append(numbers)
                shown = ", ".join(f"{key} {value:.6g}" for key, value in numbers.items())
                print(f"{curve.name} {point}, round {number + 1}: {shown}", file=sys.stderr, flush=True)
        except (ServiceError, LoadError) as error:
            failed.append(str(error))
            print(f"{curve.name}, round {number + 1}: {error}", file=sys.stderr, flush=True)
    return {"machine": machine(), "commit": git_description(), "rounds": rounds, "points": found, "failed": failed}


def _write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    if options.page:
        rewrite_page(_PAGE, results)
    plots = _PLOTS if options.page else options.results / "growth"
    plots.mkdir(parents=True, exist_ok=True)
    definitions = options.results / "growth_plot.json"
    definitions.write_text(json.dumps(_drawn(results)))
    python, _ = environment(options.cache / "plot", options.python, ["matplotlib"])
    run_command([str(python), str(Path(__file__).with_name("growth_plot.py")), str(definitions), str(plots)])


def _drawn(results: dict[str, Any]) -> dict[str, Any]:
    """Describe the plots for `growth_plot.py`, whose environment has little besides matplotlib."""
    return {
        name: {
            "title": curve.title,
            "points": results["curves"][name]["points"],
            "series": [[each.key, each.title.replace("`", ""), each.kind] for each in curve.series],
        }
        for name, curve in CURVES.items()
        if name in results["curves"]
    }


if __name__ == "__main__":
    sys.exit(main())
