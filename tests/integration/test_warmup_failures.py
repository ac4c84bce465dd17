"""Warm-ups that fail, hang or cannot be created: nothing is bound, and an earlier binding stays."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from serving import (
    LATER,
    Background,
    InferenceServerException,
    Script,
    bind_floats,
    free_config,
    infer_json,
    json_floats,
    request_json,
    running_triton,
    send_floats,
    wait_until,
)
from warmups import WARM, once, warm

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonUnrecoverableError
from pytriton.model_config.common import WarmupInput
from pytriton.triton import Triton


def fail(requests):
    raise ValueError("no weights")


# Failures of a warm-up, and the text of the error.
FAILURES = {
    "raises": (fail, "ValueError: no weights"),
    "returns none": (lambda requests: None, "the inference callable returned None"),
    "returns an exception": (lambda requests: [KeyError("layer")] * len(requests), "KeyError: 'layer'"),
    "returns another shape": (lambda requests: [[[[[0.0]]]]], "output 'y' has shape"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_callable_that_fails_in_its_warm_up_is_not_bound(triton, client, name, kind):
    infer, message = FAILURES[kind]
    with pytest.raises(PyTritonInvalidOperationError, match=f"cannot load model '{name}'.*'sample'") as error:
        bind_floats(triton, name, infer, config=WARM)

    assert message in str(error.value)
    assert name not in repr(list(triton._session.models)), "it is not among the bound models"
    with pytest.raises(InferenceServerException, match=name):
        client.infer(name, {"x": np.zeros((1, 2), np.float32)})
    bind_floats(triton, name, batch(lambda x: [x]), config=WARM)
    assert send_floats(triton, name, [1, 2]) == [1, 2]


def test_an_earlier_binding_stays_when_a_warm_up_fails(triton, name):
    bind_floats(triton, name, batch(lambda x: [x * 2]))

    for _ in range(2):
        with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
            bind_floats(triton, name, fail, config=WARM)
        assert send_floats(triton, name, [1]) == [2]
    assert request_json(triton, "GET", f"/v2/models/{name}/config")[1]["model_warmup"] == []

    bind_floats(triton, name, batch(lambda x: [x * 3]), config=WARM)
    assert send_floats(triton, name, [1]) == [3]


def test_an_earlier_binding_serves_while_a_warm_up_fails(triton, name):
    bind_floats(triton, name, batch(lambda x: [x * 2]))
    stop = threading.Event()

    def send():
        responses = []
        while not stop.is_set() or not responses:
            responses.append(infer_json(triton, name, [json_floats([1])])[1])
        return responses

    requests = Background(send)
    try:
        with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
            bind_floats(triton, name, fail, config=WARM)
    finally:
        stop.set()
    responses = requests.finish().result
    assert [response for response in responses if response.get("outputs", [{}])[0].get("data") != [2]] == []


def test_one_failing_instance_fails_the_warm_up(triton, name):
    with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
        bind_floats(triton, name, [batch(lambda x: [x]), fail, batch(lambda x: [x])], config=WARM)

    assert infer_json(triton, name, [json_floats([1])])[0] >= 400


def test_a_later_sample_that_fails_is_named(triton, name):
    def even(requests):
        if requests[0]["x"].shape[1] % 2:
            raise ValueError("odd width")
        return requests

    samples = [once(name="even"), once(WarmupInput(np.float32, (3,), zero_data=True), name="odd")]
    with pytest.raises(PyTritonInvalidOperationError, match=r"sample 'odd'.*ValueError: odd width"):
        bind_floats(triton, name, even, config=warm(*samples))


def test_other_versions_stay_when_the_warm_up_of_one_fails(triton, name):
    bind_floats(triton, name, batch(lambda x: [x * 2]), model_version=1, config=WARM)

    with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
        bind_floats(triton, name, fail, model_version=2, config=WARM)

    assert send_floats(triton, name, [1]) == [2]


def test_run_reports_a_failed_warm_up_and_stops_the_server():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    bind_floats(triton, "cold", fail, config=WARM)

    with pytest.raises(PyTritonInvalidOperationError, match=r"cannot load model 'cold'.*no weights"):
        triton.run()
    assert not triton.is_alive()

    bind_floats(triton, "cold", batch(lambda x: [x]), config=WARM)
    with triton:
        triton.run()
        assert send_floats(triton, "cold", [1, 2]) == [1, 2]


def test_an_unrecoverable_error_in_a_warm_up_stops_the_server():
    def give_up(requests):
        raise PyTritonUnrecoverableError("the device is gone")

    with running_triton() as triton:
        triton.run()
        with pytest.raises(PyTritonInvalidOperationError, match="the device is gone"):
            bind_floats(triton, "gone", give_up, config=WARM)
        wait_until(lambda: not triton.is_alive())


def test_warm_up_files_may_be_deleted_before_the_start(tmp_path):
    file = tmp_path / "values"
    np.full(2, 7, np.float32).tofile(file)
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    data = WarmupInput(np.float32, (2,), input_data_file=str(file))
    seen = []

    @batch
    def infer(x):
        seen.append(x.tolist())
        return [x]

    bind_floats(triton, "filed", infer, config=warm(once(data)))
    file.unlink()

    with triton:
        triton.run()
        assert seen == [[[7, 7]]]
        assert send_floats(triton, "filed", [1]) == [1]


def test_a_warm_up_failure_is_reported_even_if_the_earlier_file_is_deleted(triton, name, tmp_path):
    file = tmp_path / "values"
    np.zeros(2, np.float32).tofile(file)
    data = WarmupInput(np.float32, (2,), input_data_file=str(file))
    bind_floats(triton, name, batch(lambda x: [x * 2]), config=warm(once(data)))
    file.unlink()

    with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
        bind_floats(triton, name, fail, config=WARM)

    assert send_floats(triton, name, [1]) == [2]


@pytest.mark.slow
def test_repeatedly_failing_warm_ups_leave_the_server_running():
    with running_triton() as triton:
        bind_floats(triton, "good", batch(lambda x: [x]))
        triton.run()
        for number in range(150):
            with pytest.raises(PyTritonInvalidOperationError, match="no weights"):
                bind_floats(triton, f"bad_{number % 10}", fail, config=WARM)
        assert send_floats(triton, "good", [1]) == [1]


HANGING = """
import sys, time
import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import Triton, TritonConfig

def hang(requests):
    print("warms up", flush=True)
    time.sleep(60)
    return requests

config = ModelConfig(model_warmup=[ModelWarmup("sample", 1, {"x": WarmupInput(np.float32, (2,), zero_data=True)}, 1)])
tensors = {name: [Tensor(name=name, shape=(-1,), dtype=np.float32)] for name in "xy"}
with Triton(config=TritonConfig(exit_timeout_secs=1)) as triton:
    triton.run()
    triton.bind("hang", hang, tensors["x"], tensors["y"], config=config)
"""


def test_ctrl_c_ends_a_script_whose_warm_up_hangs(tmp_path):
    with Script(tmp_path, HANGING) as script:
        assert script.line() == "warms up"
        start = time.monotonic()

        script.signal(signal.SIGINT)

        assert script.wait(20) != 0
        assert time.monotonic() - start < 5
        assert "KeyboardInterrupt" in script.stderr
