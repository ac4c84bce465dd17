"""Unusual return values of repository models, and their errors."""

from __future__ import annotations

import json
import logging

import pytest
from pb_models import DECOUPLED, HEAD, TEXT, asynchronous, execute, write
from serving import Background, client_of, infer_json, json_floats, send_floats, wait_until
from streaming import row, stream_to, streamed
from worker_models import command, write_model

from pytriton.model_config import Tensor


@pytest.fixture
def load(triton, repository, name):
    def load(body, **more):
        return write(triton, repository, name, HEAD, body, **more)

    return load


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("None", "Expected a list in the execute return, found NoneType: return a list with one"),
        ("[None]", "the model returned None for a request, and did not use its response sender"),
        ("[]", "returned 0 responses to 1 requests: return one for each"),
        ("[y(1), y(2)]", "returned 2 responses to 1 requests: return one for each"),
        ("[1]", "Expected an InferenceResponse object in the execute return, found int"),
        ("[pb_utils.InferenceResponse({'y': np.ones(1)})]", "has output_tensors of type dict"),
        ("[pb_utils.InferenceResponse([pb_utils.Tensor('y', [1])])]", "TypeError: tensor 'y' is made from list"),
        ("[pb_utils.InferenceResponse(error=pb_utils.TritonError(ValueError()))]", "TypeError: the message of a"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("signal.raise_signal(signal.SIGINT)", "KeyboardInterrupt"),
    ],
)
def test_invalid_results_are_errors_with_a_reason(triton, name, load, response, message):
    load(execute(f"import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nreturn {response}"))
    error = send_floats(triton, name, [1])
    assert message in error
    assert error.startswith(f"Failed to process the request(s) for model '{name}_0', message: ")


MORE = """
def more(*values):
    tensors = [pb_utils.Tensor(name, np.array([values], np.float32)) for name in ("debug", "y", "w", "z")]
    return pb_utils.InferenceResponse(tensors)


class TritonPythonModel:
"""
MORE = HEAD.replace("class TritonPythonModel:\n", MORE)
SECOND = "output [{name: 'w', data_type: TYPE_FP32, dims: [-1]}]"
BY_SENDER = "for request in requests:\n    request.get_response_sender().send(more(*x(request)), FINAL)"


class TestUndeclaredOutputs:
    """Outputs that the configuration does not declare, or that were not requested, are left out."""

    @pytest.mark.parametrize("body", ["return [more(*x(request)) for request in requests]", BY_SENDER])
    @pytest.mark.parametrize("define", [execute, asynchronous])
    def test_declared_outputs_reach_the_client(self, triton, repository, name, body, define):
        write(triton, repository, name, MORE, define(body), config=SECOND)
        with client_of(triton, "grpc") as client:
            outputs = client.infer(name, {"x": row(3)})
            assert {output: array.tolist() for output, array in outputs.items()} == {"y": [[3]], "w": [[3]]}
        for wanted in ("y", "w"):
            _, response = infer_json(triton, name, [json_floats([4])], outputs=[{"name": wanted}])
            assert [(each["name"], each["data"]) for each in response["outputs"]] == [(wanted, [4])]

    def test_they_are_dropped_from_a_stream(self, triton, repository, name):
        body = """
sender = requests[0].get_response_sender()
for value in range(3):
    sender.send(more(value))
sender.send(flags=FINAL)
"""
        write(triton, repository, name, MORE, execute(body), config=DECOUPLED)
        assert streamed(triton, name, 1) == ([0, 1, 2, None], [False, False, False, True])

    def test_a_missing_output_is_absent_from_the_response(self, triton, repository, name):
        code = MORE.replace('"y", ', "")
        write(triton, repository, name, code, execute("return [more(*x(request)) for request in requests]"))
        status, response = infer_json(triton, name, [json_floats([4])])
        assert (status, response["outputs"]) == (200, [])

    def test_each_is_logged_once(self, triton, repository, name, caplog):
        write(triton, repository, name, MORE, execute("return [more(*x(request)) for request in requests]"))
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                assert send_floats(triton, name, [1]) == [1]
            send_floats(triton, name, [1])

            def said(output):
                begin = f"Model '{name}' returned an output '{output}' that its configuration does not declare"
                return sum(begin in message for message in caplog.messages)

            wait_until(lambda: said("z") > 0)
            assert [said(output) for output in ("debug", "w", "z", "y")] == [1, 1, 1, 0]
            assert {each.levelname for each in caplog.records if "does not declare" in each.message} == {"WARNING"}

    def test_a_calling_model_gets_the_outputs_that_it_requests(self, triton, repository, name):
        body_of_callee = execute("return [more(*x(request)) for request in requests]")
        write(triton, repository, f"{name}_asked", MORE, body_of_callee, config=SECOND)
        body = f"""
request = pb_utils.InferenceRequest(
    model_name="{name}_asked", requested_output_names=["w"], inputs=[pb_utils.Tensor("x", np.ones((1, 1), np.float32))]
)
response = request.exec()
return [text([tensor.name() for tensor in response.output_tensors()])]
"""
        write(triton, repository, name, HEAD, execute(body), whole=TEXT)
        _, response = infer_json(triton, name, [json_floats([1])])
        assert json.loads(response["outputs"][0]["data"][0]) == ["w"]

    def test_the_state_of_a_sequence_is_dropped(self, triton, repository, name):
        config = """
sequence_batching {
  state [{input_name: "state", output_name: "z", data_type: TYPE_FP32, dims: [1]}]
}
"""
        write(
            triton, repository, name, MORE, execute("return [more(*x(request)) for request in requests]"), config=config
        )
        with client_of(triton, "grpc") as client:
            outputs = client.infer(name, {"x": row(3)}, sequence_id=1, sequence_start=True, sequence_end=True)
        assert {output: array.tolist() for output, array in outputs.items()} == {"y": [[3]]}


def test_an_error_needs_no_outputs(triton, name, load):
    error = 'pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)'
    load(execute(f"return [pb_utils.InferenceResponse(None, {error})]"))
    status, response = infer_json(triton, name, [json_floats([1])])
    assert (status, response["error"]) == (404, "no")


def test_objects_are_sent_as_text(triton, name, load):
    objects = "np.array([[b'a', 'é', 3, 0.5, None]], object)"
    load(execute(f"return [pb_utils.InferenceResponse([pb_utils.Tensor('y', {objects})])]"), whole=TEXT)
    _, response = infer_json(triton, name, [json_floats([1])])
    assert response["outputs"][0]["data"] == ["a", "é", "3", "0.5", "None"]


def test_objects_are_sent_to_other_models_as_text(triton, name, load):
    triton.bind(
        f"{name}_bound",
        lambda requests: [{"y": each["x"]} for each in requests],
        inputs=[Tensor(name="x", shape=(-1,), dtype=bytes)],
        outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)],
    )
    body = f"""
tensor = pb_utils.Tensor("x", np.array([[b"a", 3]], object))
request = pb_utils.InferenceRequest(model_name="{name}_bound", requested_output_names=["y"], inputs=[tensor])
return [pb_utils.InferenceResponse(request.exec().output_tensors())]
"""
    load(execute(body), whole=TEXT)
    _, response = infer_json(triton, name, [json_floats([1])])
    assert response["outputs"][0]["data"] == ["a", "3"]


def test_no_list_is_needed_if_response_senders_have_responded(triton, name, load):
    load(execute("for request in requests:\n    request.get_response_sender().send(y(5), FINAL)"))
    assert send_floats(triton, name, [1]) == [5]


QUEUE = """
def initialize(self, args):
    self.queue = queue.SimpleQueue()
    threading.Thread(target=self.work, daemon=True).start()

def work(self):
    while True:
        request = self.queue.get()
        time.sleep(0.05)  # so that execute has returned
        request.get_response_sender().send(y(x(request)[0] + 1), FINAL)
        del request
"""


@pytest.mark.parametrize("define", [execute, asynchronous])
@pytest.mark.parametrize("returned", ["None", "[None] * len(requests)"])
def test_a_thread_that_has_a_request_gets_its_sender_when_execute_has_returned(
    triton, repository, name, define, returned
):
    body = QUEUE + define(f"for request in requests:\n    self.queue.put(request)\nreturn {returned}")
    write(triton, repository, name, HEAD.replace("import json", "import json\nimport queue"), body)
    assert [send_floats(triton, name, [value]) for value in (1, 2)] == [[2], [3]]


def test_a_response_of_a_sender_is_sent_before_execute_returns(triton, name, load):
    """``execute`` returns only when the client has received the response."""
    folder = load(
        execute("""
requests[0].get_response_sender().send(y(*x(requests[0])), FINAL)
deadline = time.monotonic() + 20
while not (HERE / "received").exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
(HERE / "returned").touch()
""")
    )
    assert send_floats(triton, name, [1]) == [1]
    (folder / "received").touch()
    wait_until((folder / "returned").exists)


def test_requests_that_wait_for_their_senders_do_not_delay_others(triton, name, load):
    """None is answered before all of them have arrived in calls of their own."""
    load(
        """
def initialize(self, args):
    self.held = []

def execute(self, requests):
    self.held += [(request.get_response_sender(), x(request)) for request in requests]
    if len(self.held) == 4:
        for sender, values in self.held:
            threading.Thread(target=sender.send, args=(y(*values), FINAL)).start()
""",
        whole=TEXT.replace("8", "1").replace("TYPE_STRING", "TYPE_FP32"),
    )
    clients = [Background(lambda value=value: send_floats(triton, name, [value])) for value in range(4)]
    assert [client.finish().result for client in clients] == [[value] for value in range(4)]


def test_many_streams_are_open_at_a_time(triton, name, load):
    """None ends before the last one has begun."""
    load(
        """
def initialize(self, args):
    self.senders = []

def execute(self, requests):
    self.senders += [request.get_response_sender() for request in requests]
    if len(self.senders) == 1000:
        for sender in self.senders:
            sender.send(y(1), FINAL)
""",
        whole=f"{TEXT.replace('8', '1').replace('TYPE_STRING', 'TYPE_FP32')}{DECOUPLED}",
    )
    with stream_to(triton) as stream:
        for _ in range(1000):
            stream.send(name, 1)
        assert {reply.y for reply in stream.replies(ends=1000)} == {1}


def test_others_may_follow_a_response_with_an_error(triton, name, load):
    load(
        execute("""
sender = requests[0].get_response_sender()
sender.send(y(0))
sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of words")))
sender.send(y(2))
sender.send(flags=FINAL)
"""),
        config=DECOUPLED,
    )
    with stream_to(triton) as stream:
        stream.send(name, 1)
        replies = [stream.reply() for _ in range(4)]
    assert [(reply.y, reply.error) for reply in replies] == [
        (0, None),
        ("out of words", "out of words"),
        (2, None),
        (None, None),
    ]
    assert replies[-1].final


def test_a_request_without_a_response_fails_even_in_a_reference_cycle(triton, name, load):
    load(execute("def recurse():\n    return recurse, requests\nimport gc\ngc.disable()"))
    assert "Expected a list in the execute return, found NoneType" in send_floats(triton, name, [1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("send(y(1), FINAL); sender.send(y(2))", "Unable to send response. Response sender has been closed."),
        ("send(y(1)); sender.send(y(2))", "Unable to send response. Non-decoupled model cannot send more than one"),
        ("send(flags=FINAL)", "Unable to send response. Non-decoupled model cannot send complete final before"),
        ("send()", "Unable to send response. There is neither a response nor the final flag"),
        ("send(y(1), 2)", "Unable to send response. Unsupported flags 2"),
        ("send(y(1), '1')", "flags='1', of type str"),
        ("send('y')", "a response of type str"),
    ],
)
def test_senders_raise_errors_with_a_reason(triton, name, load, call, message):
    body = f"""
sender = requests[0].get_response_sender()
try:
    sender.{call}
except (pb_utils.TritonModelException, TypeError) as error:
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
"""
    load(execute(body))
    response = send_floats(triton, name, [1])
    if call.startswith("send(y(1)"):  # the first response is the one
        assert response == [1] or message in response
    else:
        assert message in response


def test_a_request_gets_either_a_response_or_a_reschedule(triton, name, load):
    body = """
requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
return [y(1)]
"""
    load(execute(body), config="sequence_batching {iterative_sequence: true}")
    error = send_floats(triton, name, [1], parameters={"sequence_id": 1, "sequence_start": True, "sequence_end": True})
    assert "Expected a None object in the execute return for a rescheduled request" in error


@pytest.mark.parametrize("method", ["def", "async def"])
def test_scalar_outputs_stay_scalars(triton, name, load, method):
    body = execute("return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.array(7, 'f'))]) for _ in requests]")
    load(body.replace("def", method, 1))
    _, response = infer_json(triton, name, [json_floats([1])])
    assert (response["outputs"][0]["shape"], response["outputs"][0]["data"]) == ([], [7])
    with client_of(triton, "grpc") as client:
        output = client.infer(name, {"x": row(1)})["y"]
        assert (output.shape, output.item()) == ((), 7)


def test_scalar_outputs_stay_scalars_in_a_batch(triton, name, load):
    body = execute(
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.array(x(r)[0], 'f'))]) for r in requests]"
    )
    load(body, config="dynamic_batching {preferred_batch_size: [2], max_queue_delay_microseconds: 20000000}")
    requests = [Background(lambda each=each: infer_json(triton, name, [json_floats([each])])) for each in (3, 4)]
    outputs = [request.finish().result[1]["outputs"][0] for request in requests]
    assert [(output["shape"], output["data"]) for output in outputs] == [([], [3]), ([], [4])]


@pytest.mark.parametrize("define", [execute, asynchronous])
def test_outputs_of_one_batch_may_have_several_dtypes(triton, name, load, define):
    body = """
outputs, responses = [], []
for request in requests:
    value = x(request)[0]
    array = {1: np.array([[1, 2]]), 2: np.array([[2.5]], "f"), 3: np.array([[]]), 4: np.array([["a"]])}[value]
    outputs[:] = [pb_utils.Tensor("y", array)]
    responses.append(pb_utils.InferenceResponse(outputs))
outputs.clear()
return responses
"""
    load(define(body), config="dynamic_batching {preferred_batch_size: [4], max_queue_delay_microseconds: 20000000}")
    requests = [Background(lambda each=each: infer_json(triton, name, [json_floats([each])])) for each in (1, 2, 3, 4)]
    outputs = [request.finish().result[1]["outputs"][0] for request in requests]
    assert [(output["datatype"], output["shape"], output["data"]) for output in outputs] == [
        ("INT64", [1, 2], [1, 2]),
        ("FP32", [1, 1], [2.5]),
        ("FP64", [1, 0], []),
        ("BYTES", [1, 1], ["a"]),
    ]


def test_an_exception_while_loading_is_named_as_in_execute(triton, repository, name):
    code = f"{HEAD}    def initialize(self, args):\n        raise pb_utils.TritonModelException('no weights')\n"
    write_model(repository, name, code=code + "\n    def execute(self, requests):\n        pass\n")
    status, response = command(triton, name, "load")
    assert status == 400
    assert f"model '{name}': TritonModelException: no weights" in response["error"]


@pytest.mark.parametrize("sequence", ["abc", "a" * 128])
def test_a_text_correlation_id_is_a_control_input(triton, name, load, sequence):
    config = """
sequence_batching {
  control_input [{name: "CORRID" control [{kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING}]}]
}
"""
    body = """
tensors = [pb_utils.get_input_tensor_by_name(each, "CORRID") for each in requests]
return [text([tensor.as_numpy().item().decode(), tensor.shape()]) for tensor in tensors]
"""
    load(execute(body), whole=TEXT + config)
    with client_of(triton, "grpc") as client:
        for start, end in [(True, False), (False, True)]:
            sent = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
            assert json.loads(client.infer(name, {"x": row(1)}, **sent)["y"].item()) == [sequence, [1, 1]]
