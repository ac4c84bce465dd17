"""The backend's C++ under AddressSanitizer, with leaks and undefined behaviour, and under ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SANITIZERS = ["address", "thread"]

BEHAVIOURS = [
    "equal_shapes_are_stacked",
    "different_shapes_lie_apart",
    "every_datatype_comes_back",
    "bytes_come_back",
    "missing_inputs_are_left_out",
    "pieces_are_joined",
    "empty_tensors_come_back",
    "models_without_batches_have_no_rows",
    "details_reach_the_worker",
    "statistics_are_reported",
    "bad_requests_fail_alone",
    "gpu_memory_is_refused",
    "failures_reach_their_requests",
    "nonsense_from_the_worker_fails_the_batch",
    "mutated_answers_never_crash",
    "a_dead_worker_is_replaced",
    "loading_fails_without_a_worker",
    "kept_batches_stay_as_they_are",
    "results_stay_until_they_are_answered",
    "instances_run_side_by_side",
]


@pytest.fixture(scope="module")
def programs(native: Any) -> dict[str, Path]:
    """All programs; CMake builds them side by side."""
    names = [f"{program}_{sanitizer}" for program in ("data_path", "arena_stress") for sanitizer in SANITIZERS]
    return dict(zip(names, native.build(*names), strict=True))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_arena_under_stress(native: Any, programs: dict[str, Path], sanitizer: str) -> None:
    done = native.run(programs[f"arena_stress_{sanitizer}"], "5000")
    assert done.returncode == 0, done.stdout
    assert "trims" in done.stdout


@pytest.mark.parametrize(
    ("sanitizer", "finding"), [("address", "did not hold their data"), ("thread", "ThreadSanitizer: data race")]
)
def test_a_peer_that_reads_what_it_has_released_is_found(
    native: Any, programs: dict[str, Path], sanitizer: str, finding: str
) -> None:
    done = native.run(programs[f"arena_stress_{sanitizer}"], "5000", "--release-early")
    assert done.returncode != 0
    assert finding in done.stdout


def test_all_behaviours_of_the_data_path_are_tested(native: Any, programs: dict[str, Path]) -> None:
    done = native.run(programs["data_path_address"], "--list")
    assert done.stdout.split() == BEHAVIOURS


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_data_path(native: Any, programs: dict[str, Path], tmp_path: Path, behaviour: str, sanitizer: str) -> None:
    done = native.run(programs[f"data_path_{sanitizer}"], behaviour, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""
