"""Counts of the backend's work per batch: times vary between machines, counts do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def costs(native: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Counts per batch, by name, for so many requests of so many float32."""
    (program,) = native.build("costs", folder_name="sanitizers")  # whose parts it has
    folder: Path = tmp_path_factory.mktemp("costs")

    def count(requests: int, values: int) -> dict[str, float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTRITON_SPIN", "0")  # how often it yields is up to the machine
            done = native.run(program, str(requests), str(values), folder=folder)
        assert done.returncode == 0, done.stdout
        return {name: float(number) for name, number in (line.split("=") for line in done.stdout.splitlines())}

    return count


def test_a_batch_takes_as_many_system_calls_for_many_requests_as_for_one(costs: Any) -> None:
    one, many = costs(1, 16), costs(64, 16)
    assert one["system_calls"] == many["system_calls"] == 2  # a notification each way over the socket: no doorbell


def test_a_batch_takes_one_wait(costs: Any) -> None:
    assert costs(64, 16)["context_switches"] <= 2


def test_a_request_takes_few_allocations(costs: Any) -> None:
    few, many = costs(8, 16)["allocations"], costs(64, 16)["allocations"]
    assert (many - few) / 56 <= 13  # 11.2, those of the fake server among them


def test_a_tensor_is_copied_once_on_its_way_in_and_once_on_its_way_out(costs: Any) -> None:
    values = 150_528
    assert costs(4, values)["copied_bytes"] == 2 * 4 * values * 4
