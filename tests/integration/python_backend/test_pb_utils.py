"""All of ``triton_python_backend_utils``, used by repository models on the real server."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tritonclient.grpc
from pb_models import DECOUPLED, HEAD, SNIPPETS, TEXT, asynchronous, execute, text_of, write
from serving import HOST, at_once, client_of, infer_json, json_floats, request_json, send_floats, token_of, wait_until
from streaming import row, stream_to, streamed
from worker_models import command, state_of, write_model


@pytest.fixture
def load(triton, repository, name):
    """Writes a model whose class has this body, and has it loaded; ``whole`` is the whole of its configuration."""

    def load(body, *, name=name, **more):
        return write(triton, repository, name, HEAD, body, **more)

    return load


@pytest.fixture
def snippet(triton, repository, name):
    """Loads a snippet as it is written."""

    def load(file):
        folder = write_model(repository, name, code=(SNIPPETS / file).read_text())
        status, response = command(triton, name, "load")
        assert status == 200, response
        return folder

    return load


class TestSnippets:
    """Those of the Python backend's own pages."""

    def test_usage(self, triton, name, snippet):
        snippet("usage.py")
        assert send_floats(triton, name, [1, 2]) == [2, 4]

    def test_errors(self, triton, name, snippet):
        snippet("errors.py")
        assert send_floats(triton, name, [1]) == "An Error Occurred"

    def test_finalize(self, triton, name, snippet, capfd):
        snippet("finalize.py")
        assert send_floats(triton, name, [1]) == [1]
        status, _ = command(triton, name, "unload")
        assert status == 200
        wait_until(lambda: state_of(triton, name) == "UNAVAILABLE")

    def test_a_copy_of_the_utilities_beside_the_model_is_ignored(self, triton, name, repository):
        folder = write_model(repository, name, code=(SNIPPETS / "usage.py").read_text())
        (folder / "triton_python_backend_utils.py").write_text("raise ImportError('an old copy')")
        assert command(triton, name, "load")[0] == 200
        assert send_floats(triton, name, [1]) == [2]


class TestRequests:
    def test_an_error_is_that_of_its_request(self, triton, name, load):
        body = """
errors = pb_utils.TritonError
return [
    y(1) if x(request)[0] > 0 else pb_utils.InferenceResponse(error=errors("too small", errors.INVALID_ARG))
    for request in requests
]
"""
        load(execute(body), config="dynamic_batching {max_queue_delay_microseconds: 200000 preferred_batch_size: [2]}")
        assert send_floats(triton, name, [1]) == [1]
        status, response = infer_json(triton, name, [json_floats([-1])])
        assert (status, response["error"]) == (400, "too small")

    def test_an_exception_reaches_the_client_in_one_line(self, triton, name, load):
        load(execute('raise pb_utils.TritonModelException("no weights")'))
        message = f"Failed to process the request(s) for model '{name}_0', message: TritonModelException: no weights"
        assert send_floats(triton, name, [1]) == message

    def test_requests_have_their_metadata(self, triton, name, load):
        body = """
return [
    text([
        request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
        json.loads(request.parameters()), sorted(request.requested_output_names()),
    ])
    for request in requests
]
"""
        load(execute(body), whole=TEXT)
        assert text_of(triton, name) == ["", 0, 0, 0, {}, ["y"]]
        parameters = {"temperature": 0.5, "k": 7, "greedy": True, "stop": "é"}
        reported = text_of(triton, name, id="seven", parameters={**parameters, "timeout": 1_000_000})
        assert reported == ["seven", 0, 0, 1_000_000, parameters, ["y"]]

    @pytest.mark.parametrize("sequence", [7, 2**63 - 1, "a-sequence"])
    def test_requests_belong_to_sequences(self, triton, name, load, sequence):
        load(execute("return [text([each.correlation_id(), each.flags()]) for each in requests]"), whole=TEXT)
        with client_of(triton, "grpc") as client:
            options = {"sequence_id": sequence}
            reported = [
                client.infer(name, {"x": row(1)}, sequence_start=start, sequence_end=end, **options)["y"].item()
                for start, end in [(True, False), (False, False), (False, True)]
            ]
        assert [json.loads(each) for each in reported] == [[sequence, 1], [sequence, 0], [sequence, 2]]

    def test_sequences_have_their_control_inputs(self, triton, name, load):
        config = """
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [
    {name: "START" control [{kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]}]},
    {name: "CORRID" control [{kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64}]}
  ]
}
"""
        body = """
def value(request, name):
    return float(pb_utils.get_input_tensor_by_name(request, name).as_numpy().item())

return [y(value(each, "START"), value(each, "CORRID")) for each in requests]
"""
        load(execute(body), config=config)
        with client_of(triton, "grpc") as client:
            first = client.infer(name, {"x": row(1)}, sequence_id=5, sequence_start=True)["y"].tolist()
            second = client.infer(name, {"x": row(1)}, sequence_id=5, sequence_end=True)["y"].tolist()
        assert (first, second) == ([[1, 5]], [[0, 5]])

    def test_response_parameters_reach_the_client(self, triton, name, load):
        load(
            execute(
                'return [y(1, parameters={"text": "é", "integer": 7, "truth": True, "half": 0.5}) for _ in requests]'
            )
        )
        _, response = infer_json(triton, name, [json_floats([1])])
        found = response["parameters"]
        assert {key: found[key] for key in ("text", "integer", "truth", "half")} == {
            "text": "é",
            "integer": 7,
            "truth": True,
            "half": 0.5,
        }

    def test_bytes_are_returned_unchanged(self, triton, name, load):
        whole = 'backend: "python" input [{name: "x", data_type: TYPE_STRING, dims: [-1]}] '
        whole += 'output [{name: "y", data_type: TYPE_STRING, dims: [-1]}]'
        body = """
array = requests[0].inputs()[0].as_numpy()
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([each.upper() for each in array], object))])]
"""
        load(execute(body), whole=whole)
        with client_of(triton) as client:
            assert client.infer(name, {"x": np.array([b"a", b"\0b", b""], object)})["y"].tolist() == [b"A", b"\0B", b""]

    def test_every_datatype_is_returned_by_dlpack(self, triton, name, load):
        dtypes = [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]
        dtypes += [np.float16, np.float32, np.float64]
        names = [np.dtype(dtype).name.upper().replace("FLOAT", "FP") for dtype in dtypes]
        tensors = {
            letter: ", ".join(
                f'{{name: "{letter}{i}" data_type: TYPE_{each} dims: [-1]}}' for i, each in enumerate(names)
            )
            for letter in "xy"
        }
        whole = f'backend: "python" input [{tensors["x"]}] output [{tensors["y"]}]'
        body = """
return [
    pb_utils.InferenceResponse(
        [pb_utils.Tensor.from_dlpack("y" + each.name()[1:], each.to_dlpack()) for each in request.inputs()]
    )
    for request in requests
]
"""
        load(execute(body), whole=whole)
        inputs = {f"x{i}": np.array([1, 0, 1], dtype) for i, dtype in enumerate(dtypes)}
        with client_of(triton) as client:
            outputs = client.infer(name, inputs)
        for i, dtype in enumerate(dtypes):
            assert outputs[f"y{i}"].dtype == dtype
            np.testing.assert_array_equal(outputs[f"y{i}"], inputs[f"x{i}"])

    def test_models_see_that_requests_are_cancelled(self, triton, name, load):
        body = """
(HERE / "entered").touch()
while not requests[0].is_cancelled():
    time.sleep(0.001)
(HERE / "cancelled").touch()
return [pb_utils.InferenceResponse(error=pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED))]
"""
        folder = load(execute(body))
        client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
        tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(row(1))
        handle = client.async_infer(name, [tensor], lambda result, error: None)
        wait_until((folder / "entered").exists)
        handle.cancel()
        wait_until((folder / "cancelled").exists)
        client.close()


class TestSenders:
    def test_a_decoupled_model_streams(self, triton, name, load):
        body = """
for request in requests:
    sender = request.get_response_sender()
    for value in range(int(x(request)[0])):
        sender.send(y(value))
    sender.send(flags=FINAL)
"""
        load(execute(body), config=DECOUPLED)
        assert streamed(triton, name, 3) == ([0, 1, 2, None], [False, False, False, True])
        assert streamed(triton, name, 0) == ([None], [True])

    def test_threads_send_after_execute_has_returned(self, triton, name, load):
        body = """
def respond(sender, value):
    for i in range(3):
        time.sleep(0.01)
        sender.send(y(value + i))
    sender.send(flags=FINAL)

for request in requests:
    threading.Thread(target=respond, args=(request.get_response_sender(), x(request)[0])).start()
"""
        load(execute(body), config=DECOUPLED)
        with stream_to(triton) as stream:
            for number in range(30):
                stream.send(name, 10 * number, request_id=str(number))
            replies = stream.replies(30)
        for number in range(30):
            mine = [reply.y for reply in replies if reply.id == str(number)]
            assert mine == [10 * number, 10 * number + 1, 10 * number + 2, None]

    def test_a_dropped_sender_fails_its_request(self, triton, name, load):
        load(execute("requests[0].get_response_sender().send(y(1))"), config=DECOUPLED)
        (first, second), _ = streamed(triton, name, 1)
        assert first == 1
        assert "the model dropped the request's response sender" in second

    def test_coroutines_of_many_requests_run_at_the_same_time(self, triton, name, load):
        body = """
def initialize(self, args):
    self.inside = 0
    self.gate = None

async def execute(self, requests):
    self.gate = self.gate or asyncio.Event()
    self.inside += 1
    if self.inside == 8:
        self.gate.set()
    await self.gate.wait()
    return [y(x(request)[0]) for request in requests]
"""
        load(body)
        assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[number] for number in range(8)]

    def test_two_instances_share_requests_to_a_decoupled_model(self, triton, name, load):
        body = """
time.sleep(0.2)
for request in requests:
    request.get_response_sender().send(y(os.getpid()), FINAL)
"""
        load(execute(body), config=DECOUPLED + " instance_group [{count: 2, kind: KIND_CPU}]")
        with stream_to(triton) as stream:
            for _ in range(6):
                stream.send(name, 1)
            pids = [reply.y for reply in stream.replies(6)]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]

    @pytest.mark.parametrize("kind", [execute, asynchronous])
    def test_a_request_is_rescheduled(self, triton, name, load, kind):
        body = """
for request in requests:
    identity = request.request_id()
    turns = self.turns[identity] = self.turns.get(identity, 0) + 1
    if turns < 3:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        request.get_response_sender().send(y(turns))
    else:
        request.get_response_sender().send(y(turns), FINAL)
"""
        config = DECOUPLED + " sequence_batching {iterative_sequence: true}"
        load("turns = {}\n\n" + kind(body), config=config)
        assert streamed(triton, name, 1, request_id="a") == ([1, 2, 3], [False, False, True])

    def test_a_request_of_a_model_that_is_not_decoupled_is_rescheduled(self, triton, name, load):
        body = """
responses = []
for request in requests:
    self.turns += 1
    if self.turns < 3:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        responses.append(None)
    else:
        responses.append(y(self.turns))
return responses
"""
        load("turns = 0\n\n" + execute(body), config="sequence_batching {iterative_sequence: true}")
        assert send_floats(triton, name, [1]) == [3]

    def test_rescheduling_requires_a_scheduler_that_supports_it(self, triton, name, load):
        body = "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [None]"
        load(execute(body))
        assert "the request cannot be rescheduled" in send_floats(triton, name, [1])


class TestLife:
    def test_a_missing_configuration_is_completed(self, triton, repository, name):
        code = f"""{HEAD}
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.add_output({{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [y(*x(request)) for request in requests]
"""
        folder = write_model(repository, name, code=code)
        (folder.parent / "config.pbtxt").unlink()
        status, response = command(triton, name, "load")
        assert status == 200, response
        assert send_floats(triton, name, [7]) == [7]
        _, config = request_json(triton, "GET", f"/v2/models/{name}/config", headers=token_of(triton))
        assert config["max_batch_size"] == 4

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
            ("class TritonPythonModel:\n    pass", "has no method 'execute'"),
            ("x = (", "SyntaxError"),
            (
                "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"
                "    def execute(self, requests):\n        pass",
                "ValueError: no weights",
            ),
        ],
    )
    def test_a_failed_load_reports_its_reason(self, triton, repository, name, code, message):
        write_model(repository, name, code=code)
        status, response = command(triton, name, "load")
        assert status == 400
        assert message in response["error"]

    def test_finalize_runs_when_the_model_is_unloaded(self, triton, name, load):
        folder = load(
            execute("return [y(1) for _ in requests]") + "\n\ndef finalize(self):\n    (HERE / 'final').touch()"
        )
        assert command(triton, name, "unload")[0] == 200
        wait_until(lambda: (folder / "final").exists())

    def test_versions_are_served_side_by_side(self, triton, name, repository, load):
        load(execute("return [y(1) for _ in requests]"), name=name + "_", config="version_policy {all {}}")
        shutil.copytree(repository / f"{name}_" / "1", repository / f"{name}_" / "2")
        model = repository / f"{name}_" / "2" / "model.py"
        model.write_text(model.read_text().replace("y(1)", "y(2)"))
        assert command(triton, f"{name}_", "load")[0] == 200
        for version in (1, 2):
            _, response = infer_json(triton, f"{name}_", [json_floats([0])], version=version)
            assert response["outputs"][0]["data"] == [version]


def test_nothing_is_lost_when_a_decoupled_model_dies(triton, name, load):
    body = """
for request in requests:
    if x(request)[0] < 0:
        os._exit(3)
    request.get_response_sender().send(y(os.getpid()), FINAL)
"""
    load(execute(body), config=DECOUPLED)
    (before,), _ = streamed(triton, name, 1)
    (error,), _ = streamed(triton, name, -1)
    assert "the worker has gone" in error or "closed" in error, error
    (after,), _ = streamed(triton, name, 1)
    assert after != before
