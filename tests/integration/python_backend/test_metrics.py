"""The built-in metrics of models of a repository."""

from __future__ import annotations

from serving import samples_of, wait_until
from worker_models import command, send_request, write_model

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] == -1:
                raise OSError("no disk")
            if x[0, 0] == -2:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one")))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
"""


def test_a_model_of_a_repository_has_the_metrics_of_a_bound_one(triton, repository, name):
    write_model(repository, name, code=MODEL)
    assert command(triton, name, "load")[0] == 200
    assert send_request(triton, name, 1) == [1]
    for number in (-1, -2):
        assert isinstance(send_request(triton, name, number), str)
    phases = [f"pytriton_{phase}_duration_seconds_count" for phase in ("request", "queue", "worker_wait", "python")]
    for metric in [*phases, "pytriton_batch_size_count"]:
        wait_until(lambda metric=metric: samples_of(triton, metric, model=name, version="1") == {(): 3}, what=metric)
    errors = samples_of(triton, "pytriton_callable_errors_total", model=name, version="1")
    assert sorted(errors.items()) == [(("OSError",), 1), (("TritonError",), 1)]
    assert command(triton, name, "unload")[0] == 200
    wait_until(lambda: samples_of(triton, "pytriton_requests_in_flight", model=name) == {})
