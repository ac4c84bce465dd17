"""Random kills of worker processes under load: no request is lost silently, and nothing is left behind."""

from __future__ import annotations

import functools

import pytest
from footprint import Footprint, settled
from random_kills import check_failures, kill_at_random
from serving import at_once, request_json, running_triton, wait_until
from worker_models import none_runs, send_request, workers_of, write_model

MODELS = ("one", "two")
INSTANCES = 2


@pytest.fixture
def triton(tmp_path, own_home):
    for model in MODELS:
        write_model(tmp_path, model, config=f"instance_group [{{count: {INSTANCES}, kind: KIND_CPU}}]")
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        yield triton


def serving_pids(triton, model):
    responses = at_once(8, lambda _: send_request(triton, model, -2, 0.05))
    assert all(isinstance(response, list) for response in responses), responses
    return {int(response[-1]) for response in responses}


def all_serve(triton):
    pids = {worker.pid for worker in workers_of(triton)}
    return (
        len(pids) == len(MODELS) * INSTANCES and set().union(*(serving_pids(triton, each) for each in MODELS)) == pids
    )


def check_random_kills(triton, home, duration_s, caplog):
    wait_until(lambda: all_serve(triton))
    before, folders = Footprint(triton), sorted(home.rglob("*"))
    sends = [functools.partial(send_request, triton, model) for model in MODELS for _ in range(3)]
    responses, victims = kill_at_random(sends, lambda: workers_of(triton), duration_s)

    assert all(response[0] == 2 * number for number, response in responses if not isinstance(response, str))
    check_failures(responses, "the worker has gone|its worker process")
    wait_until(lambda: all_serve(triton), 30)
    for model in MODELS:
        assert request_json(triton, "GET", f"/v2/models/{model}/ready")[0] == 200
    logged = [line for line in caplog.messages if "was killed by SIGKILL; restarting it" in line]
    assert len(logged) == len(victims)
    assert none_runs(victims)
    after = settled(triton, before)
    assert before.is_as_before(after), (before.rss, after.rss, before.files, after.files)
    assert len(sorted(home.rglob("*"))) == len(folders)


@pytest.mark.slow
def test_no_request_is_lost_silently(triton, own_home, caplog):
    check_random_kills(triton, own_home, 5, caplog)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_request_is_lost_silently_for_a_minute(triton, own_home, caplog):
    check_random_kills(triton, own_home, 60, caplog)
