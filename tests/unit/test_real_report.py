"""The report of benchmarks/real_models.py, and its place in the documentation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from real_functions import MODELS  # noqa: E402
from real_report import write_page, write_report  # noqa: E402

PAGE = ROOT / "docs" / "real_models.md"


def results(**rounds: list[dict[str, float]]) -> dict[str, Any]:
    contender = {"note": "", "versions": {}, "bound": False, "failed": []}
    where = {"processor": "one", "cores": "2", "shared": "by thread", "kernel": "6", "date": "today"}
    return {
        "machine": where,
        "commit": "abc",
        "tools": {},
        "rounds": 2,
        "workers": 2,
        "missing": {"bentoml": "it does not install"},
        "contenders": {name: {**contender, "title": name, "rounds": found} for name, found in rounds.items()},
    }


def numbers(throughput: float, p99: float) -> dict[str, float]:
    found = {"throughput": throughput, "p50_ms": p99 / 2, "p99_ms": p99, "cpu_us": 10.0}
    return {f"digits/64/{name}": value for name, value in found.items()}


def test_report_compares_rounds_and_batches(tmp_path: Path) -> None:
    ours = [numbers(300, 10), numbers(100, 10)]
    found = results(
        pytriton=ours, unbatched=[numbers(100, 20), numbers(50, 20)], mosec=[numbers(150, 5), numbers(50, 5)]
    )
    report = write_report(found, tmp_path)
    assert "| mosec: requests/s | 2.00× |" in report
    assert "| mosec: shorter p99 | 0.50× |" in report
    assert "| digits (scikit-learn), c64: pytriton | **200** (100 to 300) | 2.50× | 5.0 | 10.0 |" in report
    assert "| digits (scikit-learn), c64: unbatched | **75** (50 to 100) |  | 10.0 | 20.0 |" in report
    assert "- bentoml: it does not install" in report
    assert (tmp_path / "report.md").read_text() == report


def test_only_the_numbers_of_the_page_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    for name in ("real_models.png", "real_models.svg"):
        (tmp_path / name).write_text(name)
    page = Path(shutil.copy(PAGE, tmp_path / "page.md"))
    before, end = PAGE.read_text().partition("<!-- numbers -->")[0], PAGE.read_text().rpartition("<!-- end -->")[2]
    for report in ("first\n", "second\n"):
        write_page(page, report, tmp_path)
        assert page.read_text() == f"{before}<!-- numbers -->\n\n{report}\n<!-- end -->{end}"
    assert (tmp_path / "assets" / "real_models.png").read_text() == "real_models.png"


def test_page_without_markers_is_not_changed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text")
    with pytest.raises(ValueError, match="lacks the markers"):
        write_page(page, "report", tmp_path)
    assert page.read_text() == "text"


@pytest.mark.parametrize("name", ["digits", "images"])
def test_responses_are_compared_with_the_models_own_results(name: str) -> None:
    model = MODELS[name]
    assert model.output_shape is not None
    expected = np.full(model.output_shape, 3, model.output_dtype)
    assert model.is_right(model.encode(expected), model.encode(expected))
    nearly = expected if model.output_dtype is np.int64 else expected * np.float32(1.0001)
    assert model.is_right(model.encode(nearly), model.encode(expected))
    assert not model.is_right(model.encode(expected + 1), model.encode(expected))
    assert not model.is_right(model.encode(expected)[:-1], model.encode(expected))
