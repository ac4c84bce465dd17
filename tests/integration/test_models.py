"""Several models, instances and versions, bound before and after the server runs, and again."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    NO_BATCHING,
    at_once,
    bind_floats,
    client_of,
    counted_statistics_of,
    infer_json,
    json_floats,
    request_json,
    running_triton,
    send_floats,
    token_of,
)

from pytriton.decorators import batch
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
)
from pytriton.model_config import ModelConfig, Tensor

X = np.ones((1, 1), np.float32)
ONE_AT_A_TIME = ModelConfig(max_batch_size=1)


def times(factor):
    return batch(lambda x: [x * factor])


def served_models(triton):
    _, index = request_json(triton, "POST", "/v2/repository/index", headers=token_of(triton))
    return {(each["name"], each["version"]) for each in index if each["state"] == "READY"}


def test_several_models_are_served_side_by_side(triton, name):
    for factor in (2, 3, 5):
        bind_floats(triton, f"{name}_{factor}", times(factor))

    assert [send_floats(triton, f"{name}_{factor}", [7]) for factor in (2, 3, 5)] == [[14], [21], [35]]


def test_models_run_at_the_same_time(triton, name):
    together = threading.Barrier(2, timeout=30)

    def infer(requests):
        together.wait()
        return requests

    bind_floats(triton, f"{name}_a", infer)
    bind_floats(triton, f"{name}_b", infer)

    assert at_once(2, lambda number: send_floats(triton, f"{name}_{'ab'[number]}", [1])) == [[1], [1]]


def test_names_may_have_punctuation(triton, client, name):
    bind_floats(triton, f"{name}.v1-x~2_", times(2))

    assert client.infer(f"{name}.v1-x~2_", {"x": X})["y"].item() == 2


def test_instances_run_at_the_same_time(triton, name):
    together = threading.Barrier(3, timeout=30)

    def infer(requests):
        together.wait()
        return requests

    bind_floats(triton, name, [infer] * 3, config=ONE_AT_A_TIME)

    assert at_once(3, lambda _: send_floats(triton, name, [1])) == [[1]] * 3


def test_the_load_is_spread_over_the_instances(triton, name):
    counts = [0, 0, 0]
    meet = threading.Barrier(3, timeout=30)

    def instance(number):
        def infer(requests):
            counts[number] += 1
            meet.wait()
            return requests

        return infer

    bind_floats(triton, name, [instance(number) for number in range(3)], config=ONE_AT_A_TIME)

    at_once(6, lambda _: send_floats(triton, name, [1]))

    assert counts == [2, 2, 2]


def test_one_request_at_a_time_is_served_by_one_instance(triton, name):
    """Its worker may still be spinning, where others would have to be woken."""
    served = []

    def instance(number):
        def infer(requests):
            served.append(number)
            return requests

        return infer

    bind_floats(triton, name, [instance(number) for number in range(4)], config=ONE_AT_A_TIME)
    for _ in range(40):
        send_floats(triton, name, [1])

    most = max(served.count(number) for number in range(4))
    assert most > 14  # in turn, each would serve 10; another one may take over before the last one is done


def test_one_instance_serves_one_batch_at_a_time(triton, name):
    running = []
    most = []

    def infer(requests):
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.01)
        running.pop()
        return requests

    bind_floats(triton, name, infer, config=ONE_AT_A_TIME)

    at_once(8, lambda _: send_floats(triton, name, [1]))

    assert max(most) == 1


def test_a_slow_instance_does_not_delay_the_others(triton, name):
    gate = threading.Event()

    def slow(requests):
        assert gate.wait(30)
        return requests

    bind_floats(triton, name, [slow, times(1)], config=ONE_AT_A_TIME)
    done = threading.Semaphore(0)

    def send(_):
        response = send_floats(triton, name, [1])
        done.release()
        return response

    def release(count):
        for _ in range(count):
            assert done.acquire(timeout=30)
        gate.set()

    assert at_once(8, lambda number: send(number) if number else release(6))[1:] == [[1]] * 7


def test_two_versions_are_served_together(triton, name):
    bind_floats(triton, name, times(2), model_version=1)
    bind_floats(triton, name, times(30), model_version=3)

    assert send_floats(triton, name, [1], version=1) == [2]
    assert send_floats(triton, name, [1], version=3) == [30]
    assert send_floats(triton, name, [1]) == [30], "without a version the latest one responds"
    assert {(name, "1"), (name, "3")} <= served_models(triton)
    assert counted_statistics_of(triton, name, 1, version=1)["inference_count"] == 1
    assert counted_statistics_of(triton, name, 2, version=3)["inference_count"] == 2


def test_a_version_may_be_the_only_one(triton, client, name):
    bind_floats(triton, name, times(2), model_version=7)

    assert client.infer(name, {"x": X}, model_version="7")["y"].item() == 2
    assert infer_json(triton, name, [json_floats([1])], version=1)[0] >= 400


def test_versions_with_different_inputs_are_refused(triton, name):
    bind_floats(triton, name, times(2), model_version=1)

    with pytest.raises(PyTritonModelConfigError, match=f"Versions 1 and 2 of model '{name}' have different inputs"):
        triton.bind(name, times(2), [Tensor(name="x", shape=(3,), dtype=bool)], FLOATS_OUT, model_version=2)

    assert send_floats(triton, name, [1]) == [2]


def test_a_version_is_replaced_and_the_others_stay(triton, name):
    bind_floats(triton, name, times(2), model_version=1)
    bind_floats(triton, name, times(3), model_version=2)
    bind_floats(triton, name, times(5), model_version=1)

    assert [send_floats(triton, name, [1], version=version) for version in (1, 2)] == [[5], [3]]


def test_binding_again_replaces_the_callable(triton, name):
    bind_floats(triton, name, times(2))
    assert send_floats(triton, name, [1]) == [2]

    bind_floats(triton, name, times(3))
    assert send_floats(triton, name, [1]) == [3]


def test_binding_again_replaces_inputs_outputs_settings_and_the_number_of_instances(triton, http_client, name):
    bind_floats(triton, name, times(2))
    triton.bind(
        name,
        [lambda requests: [{"b": request["a"]} for request in requests]] * 3,
        inputs=[Tensor(name="a", shape=(2,), dtype=np.int16)],
        outputs=[Tensor(name="b", shape=(2,), dtype=np.int16)],
        config=NO_BATCHING,
    )

    sent = np.array([1, 2], np.int16)
    assert http_client.infer(name, {"a": sent})["b"].tolist() == [1, 2]
    _, config = request_json(triton, "GET", f"/v2/models/{name}/config")
    assert config["max_batch_size"] == 0
    assert [group["count"] for group in config["instance_group"]] == [3]


def test_a_request_in_flight_is_completed_by_the_callable_that_it_reached(triton, name):
    entered, gate = threading.Event(), threading.Event()

    def old(requests):
        entered.set()
        assert gate.wait(30)
        return [[request["x"] * 2] for request in requests]

    bind_floats(triton, name, old)

    def act(number):
        if number == 0:
            return send_floats(triton, name, [1])
        assert entered.wait(30)
        try:
            bind_floats(triton, name, times(3))
            return send_floats(triton, name, [1])
        finally:
            gate.set()

    assert at_once(2, act) == [[2], [3]]


def test_an_unchanged_binding_can_be_repeated(triton, name):
    infer = times(2)
    for _ in range(5):
        bind_floats(triton, name, infer)
        assert send_floats(triton, name, [1]) == [2]


def test_one_callable_can_serve_several_models(triton, name):
    infer = times(2)
    bind_floats(triton, f"{name}_a", infer)
    bind_floats(triton, f"{name}_b", infer)

    assert [send_floats(triton, f"{name}_{each}", [1]) for each in "ab"] == [[2], [2]]


def test_models_can_be_bound_before_and_after_the_server_runs():
    with running_triton() as triton:
        bind_floats(triton, "before", times(2))
        bind_floats(triton, "before_too", times(3))
        triton.run()
        bind_floats(triton, "after", times(5))

        assert [send_floats(triton, each, [1]) for each in ("before", "before_too", "after")] == [[2], [3], [5]]


def test_models_can_be_bound_from_several_threads(triton, name):
    at_once(6, lambda number: bind_floats(triton, f"{name}_{number}", times(number)))

    assert at_once(6, lambda number: send_floats(triton, f"{name}_{number}", [1])) == [[n] for n in range(6)]


def test_a_callable_may_bind_another_model(triton, name):
    def infer(requests):
        bind_floats(triton, f"{name}_inner", times(9))
        return requests

    bind_floats(triton, name, infer)

    assert send_floats(triton, name, [1]) == [1]
    assert send_floats(triton, f"{name}_inner", [1]) == [9]


def test_a_callable_may_send_a_request_to_another_model(triton, name):
    bind_floats(triton, f"{name}_inner", times(3))

    def infer(requests):
        return [
            [np.array([send_floats(triton, f"{name}_inner", request["x"][0].tolist())], np.float32)]
            for request in requests
        ]

    bind_floats(triton, name, infer, config=ONE_AT_A_TIME)

    assert send_floats(triton, name, [1, 2]) == [3, 6]


@pytest.mark.parametrize("infer_func", [None, 3, [], [times(2), None]])
def test_objects_that_are_not_callable_are_refused(triton, name, infer_func):
    with pytest.raises((PyTritonBadParameterError, TypeError)):
        bind_floats(triton, name, infer_func)


def test_a_model_that_the_server_refuses_is_not_bound_and_the_old_one_stays(triton, name, monkeypatch):
    bind_floats(triton, name, times(2))
    monkeypatch.setattr("pytriton.models.store.model_config_pbtxt", lambda *_, **__: "nonsense {")

    with pytest.raises(PyTritonInvalidOperationError, match=f"The server cannot load model '{name}'"):
        bind_floats(triton, name, times(3))

    monkeypatch.undo()
    assert send_floats(triton, name, [1]) == [2]
    bind_floats(triton, name, times(4))
    assert send_floats(triton, name, [1]) == [4]


def test_strict_checks_shapes(triton, name):
    outputs = [Tensor(name="y", shape=(3,), dtype=np.float32)]
    triton.bind(name, times(2), FLOATS_IN, outputs, strict=True)

    assert send_floats(triton, name, [1, 2, 3]) == [2, 4, 6]
    assert send_floats(triton, name, [1, 2]) == (
        f"model '{name}': output 'y' has shape (1, 2), but float32 (batch, 3) was declared: return that shape, or "
        "declare -1 for any size"
    )


def test_many_models_and_clients_at_once(triton, name):
    models = [f"{name}_{number}" for number in range(4)]
    for number, model in enumerate(models):
        bind_floats(triton, model, [times(number + 1)] * 2)

    def send(number):
        with client_of(triton, ["http", "grpc"][number % 2]) as client:
            for size in range(1, 60):
                sent = np.full((1, size * 50), number, np.float32)
                received = client.infer(models[number % 4], {"x": sent})["y"]
                assert np.array_equal(received, sent * (number % 4 + 1))

    at_once(12, send)
