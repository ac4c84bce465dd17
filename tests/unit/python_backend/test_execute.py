"""``execute`` that returns its responses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from declared import config_of, tensor
from sending_models import unrecognized

from pytriton.proxy.wire.inference import RESCHEDULE, RequestMetadata, RequestOptions

FAILED = "Failed to process the request(s) for model 'm_0_0', message: "
ADD = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]))
            return responses
"""


def model(body):
    """A model whose ``execute`` is this, after the imports."""
    lines = "\n".join("            " + line for line in body.strip("\n").splitlines())
    return unrecognized(
        "import threading\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"
        f"class TritonPythonModel:\n        def execute(self, requests):\n{lines}\n"
    )


def x(*values):
    return {"x": np.array([values], np.float32)}


def response(instance, *requests, metadata=()):
    """Sends a batch, and returns its result and its outputs."""
    instance.notify(*requests, metadata=metadata)
    return instance.response([1] * len(requests))


def failures(instance, *requests):
    result, _ = response(instance, *requests)
    return [(failure.request, failure.code, failure.message) for failure in result.failures]


def test_it_responds_to_each_request(serve):
    _, outputs = response(serve(ADD), x(1), x(2))
    assert [array.tolist() for array in outputs["y"]] == [[[2]], [[3]]]


def test_requests_of_different_shapes_are_served(serve):
    _, outputs = response(serve(ADD), x(1), x(2, 3))
    assert [array.tolist() for array in outputs["y"]] == [[[2]], [[3, 4]]]


def test_an_error_fails_its_own_request(serve):
    instance = serve(
        model("""
responses = []
for request in requests:
    x = request.inputs()[0].as_numpy()
    if x[0, 0] < 0:
        error = pb_utils.TritonError("it is negative", pb_utils.TritonError.INVALID_ARG)
        responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
    else:
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
return responses
""")
    )
    result, outputs = response(instance, x(1), x(-1), x(2))
    assert [tuple(failure) for failure in result.failures] == [(1, 3, "it is negative", "", "TritonError")]
    assert [None if array is None else array.tolist() for array in outputs["y"]] == [[[1]], None, [[2]]]


def test_an_error_without_a_code_is_internal(serve):
    body = 'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("An Error Occured"))]'
    assert failures(serve(model(body)), x(1)) == [(0, 1, "An Error Occured")]


def test_an_exception_fails_the_batch_and_shows_the_models_own_lines(serve):
    instance = serve(model('raise pb_utils.TritonModelException("no weights")'))
    result, _ = response(instance, x(1))
    (failure,) = result.failures
    assert (failure.request, failure.message) == (-1, f"{FAILED}TritonModelException: no weights")
    assert 'model.py", line 7, in execute' in failure.detail
    assert "python_backend/execution" not in failure.detail


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", f"{FAILED}Expected a list in the execute return, found NoneType"),
        ("[]", "returned 0 responses to 1 requests"),
        ("['y']", "Expected an InferenceResponse object in the execute return, found str"),
        ("[None]", "returned None for a request"),
        ("[pb_utils.InferenceResponse([np.zeros(1)])]", "has ndarray among its output_tensors"),
    ],
)
def test_an_invalid_response_is_refused(serve, returned, message):
    ((_, code, said),) = failures(serve(model(f"return {returned}")), x(1))
    assert code == 1
    assert message in said


def test_outputs_are_sent_unchanged(serve):
    body = """
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array(7, np.int64))]) for _ in requests]
"""
    _, outputs = response(serve(model(body)), x(1))
    assert (outputs["y"][0].dtype, outputs["y"][0].shape, outputs["y"][0].tolist()) == (np.int64, (), 7)


def test_outputs_of_one_batch_may_have_several_dtypes(serve):
    body = """
arrays = [np.array([[1, 2]]), np.array([[3]], np.float32), np.array([[]]), np.array([["a"]]), np.array([[4]])]
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]
"""
    result, _ = response(serve(model(body)), *[x(1)] * 5)
    assert [(each.position, each.datatype, each.stacked) for each in result.columns] == [
        (0, 9, False),
        (0, 11, False),
        (0, 12, False),
        (0, 13, False),
    ]
    held = [[request for request, tensor in enumerate(each.tensors) if tensor.offset >= 0] for each in result.columns]
    assert held == [[0, 4], [1], [2], [3]]


def test_a_list_of_outputs_may_be_reused(serve):
    body = """
outputs, responses = [], []
for request in requests:
    outputs.append(pb_utils.Tensor("y", request.inputs()[0].as_numpy()))
    responses.append(pb_utils.InferenceResponse(outputs))
    outputs.clear()
return responses
"""
    _, outputs = response(serve(model(body)), x(1), x(2))
    assert [array.tolist() for array in outputs["y"]] == [[[1]], [[2]]]


def test_a_list_of_inputs_may_be_changed(serve):
    body = """
for request in requests:
    request.inputs().clear()
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
    _, outputs = response(serve(model(body)), x(1), x(2))
    assert [array.tolist() for array in outputs["y"]] == [[[1]], [[2]]]


def test_an_output_may_be_left_out(serve):
    body = 'return [pb_utils.InferenceResponse([pb_utils.Tensor("z", requests[0].inputs()[0].as_numpy())])]'
    instance = serve(model(body), config_of(outputs=[tensor("y"), tensor("z")]))
    result, outputs = response(instance, x(5))
    assert (result.failures, list(outputs)) == ([], ["z"])


UNDECLARED = """
x = requests[0].inputs()[0].as_numpy()
tensors = [pb_utils.Tensor(name, x) for name in ("z", "y", "debug")]
response = pb_utils.InferenceResponse(tensors, parameters={"a": 1})
"""


@pytest.mark.parametrize("send", ["return [response]", "requests[0].get_response_sender().send(response)"])
def test_undeclared_outputs_are_dropped(serve, caplog, send):
    instance = serve(model(UNDECLARED + send))
    for value in range(3):
        result, outputs = response(instance, x(value))
        assert (result.failures, result.parameters) == ([], {0: {"a": 1}})
        assert {name: arrays[0].tolist() for name, arrays in outputs.items()} == {"y": [[value]]}
    warnings = [each.getMessage() for each in caplog.records]
    assert len(warnings) == 2, "one for each name"
    assert (
        "Model 'm' returned an output 'z' that its configuration does not declare: its outputs are 'y'." in warnings[0]
    )
    assert "'debug'" in warnings[1]


def test_a_response_of_undeclared_outputs_alone_is_one_without_outputs(serve):
    body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('z', np.zeros(1))])]"
    result, outputs = response(serve(model(body)), x(1))
    assert (result.failures, outputs) == ([], {})


def test_undeclared_outputs_need_not_be_sendable(serve):
    body = """
class Nameless:
    def __str__(self):
        raise ValueError

tensors = [pb_utils.Tensor("z", np.array([[Nameless()]], object)), pb_utils.Tensor("y", np.ones((1, 1), "f"))]
return [pb_utils.InferenceResponse(tensors)]
"""
    _, outputs = response(serve(model(body)), x(1))
    assert outputs["y"][0].tolist() == [[1]]


def test_bytes_are_arrays_of_objects(serve):
    body = """
x = requests[0].inputs()[0]
assert (x.triton_dtype(), x.as_numpy().dtype, x.as_numpy().tolist()) == (13, object, [[b"a", b""]]), x.as_numpy()
texts = np.array([["b", b"\\x00"]], object)
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", texts)])]
"""
    config = config_of([tensor("x", "TYPE_STRING")], [tensor("y", "TYPE_STRING")])
    _, outputs = response(serve(model(body), config), {"x": np.array([[b"a", b""]], object)})
    assert outputs["y"][0].tolist() == [[b"b", b"\0"]]


def test_inputs_stay_valid_for_as_long_as_they_are_held(serve):
    instance = serve("""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []

            def execute(self, requests):
                self.kept += [request.inputs()[0] for request in requests]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.kept[0].as_numpy())])]
    """)
    for value in range(20):
        _, outputs = response(instance, x(value))
        assert outputs["y"][0].tolist() == [[0]]


def test_response_parameters_reach_the_client(serve):
    body = """
parameters = {"text": "é", "integer": -7, "truth": True, "number": 0.5}
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())], parameters=parameters)]
"""
    result, _ = response(serve(model(body)), x(1))
    assert result.parameters == {0: {"text": "é", "integer": -7, "truth": True, "number": 0.5}}


def test_requests_have_their_metadata(serve):
    body = """
import json
descriptions = [
    [
        request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.priority(),
        request.trace().id(), request.trace().get_context(), json.loads(request.parameters()),
        sorted(request.requested_output_names()), request.model_name(),
    ]
    for request in requests
]
return [
    pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([json.dumps(each)], object))]) for each in descriptions
]
"""
    config = config_of(outputs=[tensor("y", "TYPE_STRING"), tensor("z")])
    metadata = [
        RequestMetadata("a", [0], {"p": 1, "q": "é"}, RequestOptions(2**64 - 1, 1, 3, 1000, 2**63, "{}")),
        RequestMetadata("", None, {}, RequestOptions("sequence", 2)),
        RequestMetadata(),
    ]
    _, outputs = response(serve(model(body), config), x(1), x(2), x(3), metadata=metadata)
    assert [json.loads(array.item()) for array in outputs["y"]] == [
        ["a", 2**64 - 1, 1, 1000, 3, 2**63, "{}", {"p": 1, "q": "é"}, ["y"], "m"],
        ["", "sequence", 2, 0, 0, 0, None, {}, ["y", "z"], "m"],
        ["", 0, 0, 0, 0, 0, None, {}, ["y", "z"], "m"],
    ]


def test_a_request_is_returned_to_the_server_for_rescheduling(serve):
    body = """
requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
y = pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])
return [y, None]
"""
    result, outputs = response(serve(model(body)), x(1), x(2))
    assert [tuple(failure) for failure in result.failures] == [(1, RESCHEDULE, "", "", "")]
    assert outputs["y"][1] is None


def test_a_sender_may_respond_from_a_thread(serve):
    body = """
def respond(sender, array):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

for request in requests:
    sender, array = request.get_response_sender(), request.inputs()[0].as_numpy()
    threading.Timer(0.01, respond, (sender, array)).start()
return [None] * len(requests)
"""
    _, outputs = response(serve(model(body)), x(1), x(2))
    assert [array.tolist() for array in outputs["y"]] == [[[1]], [[2]]]


def test_a_request_whose_sender_is_dropped_fails(serve):
    body = "request = requests.pop()\nrequest.get_response_sender()\nreturn [None]"
    ((_, code, message),) = failures(serve(model(body)), x(1))
    assert (code, message) == (
        1,
        "the model dropped the request's response sender before it had sent the final flag",
    )


def test_a_sender_responds_once(serve):
    body = """
sender = requests[0].get_response_sender()
response = pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])
sender.send(response)
try:
    sender.send(response)
except pb_utils.TritonModelException as error:
    assert "cannot send more than one response" in str(error), error
    return [None]
"""
    result, outputs = response(serve(model(body)), x(4))
    assert result.failures == []
    assert outputs["y"][0].tolist() == [[4]]


def test_sent_responses_are_kept_when_execute_fails(serve):
    body = """
x = requests[0].inputs()[0].as_numpy()
requests[0].get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
raise ValueError("no luck")
"""
    result, outputs = response(serve(model(body)), x(4), x(5))
    assert outputs["y"][0].tolist() == [[4]]
    assert [(failure.request, failure.message) for failure in result.failures] == [(1, f"{FAILED}ValueError: no luck")]


def test_a_sender_that_sends_only_the_final_flag_is_refused(serve):
    body = "requests[0].get_response_sender().send(flags=1)\nreturn [None]"
    ((_, _, message),) = failures(serve(model(body)), x(4))
    assert "Non-decoupled model cannot send complete final before sending a response" in message


def test_a_sent_response_takes_precedence_over_a_returned_one(serve):
    body = """
x = requests[0].inputs()[0].as_numpy()
requests[0].get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]))
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
"""
    _, outputs = response(serve(model(body)), x(4))
    assert outputs["y"][0].tolist() == [[5]]


BOTH = """
requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
y = pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])
"""


def test_a_request_gets_a_response_or_is_rescheduled_but_not_both(serve):
    ((_, _, message),) = failures(serve(model(f"{BOTH}return [y]")), x(1))
    assert message.startswith(f"{FAILED}Expected a None object in the execute return for a rescheduled request")


def test_a_request_with_a_response_is_not_rescheduled(serve):
    result, outputs = response(serve(model(f"{BOTH}requests[0].get_response_sender().send(y)")), x(1))
    assert result.failures == []
    assert outputs["y"][0].tolist() == [[1]]


def test_execute_sees_a_cancellation(serve):
    instance = serve(
        model("""
while not requests[0].is_cancelled():
    pass
assert requests[0].get_response_sender().is_cancelled()
return [pb_utils.InferenceResponse(error=pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED))]
""")
    )
    sequence = instance.notify(x(1))
    instance.cancel(sequence)
    result, _ = instance.response([1])
    assert result.failures[0].code == 7


def test_a_model_without_batching_is_served(serve):
    instance = serve(ADD, config_of([tensor("x", dims=[2])], [tensor("y", dims=[2])], max_batch_size=0))
    instance.notify({"x": np.array([1, 2], np.float32)})
    _, outputs = instance.response([])
    assert outputs["y"][0].tolist() == [2, 3]


def test_inputs_that_the_server_adds_to_a_sequence_are_tensors(serve):
    body = """
start = pb_utils.get_input_tensor_by_name(requests[0], "START").as_numpy()
return [pb_utils.InferenceResponse([pb_utils.Tensor("y", start)])]
"""
    control = [{"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}]
    instance = serve(model(body), config_of(sequence_batching={"control_input": control}))
    _, outputs = response(instance, {**x(1), "START": np.ones((1, 1), np.float32)})
    assert outputs["y"][0].tolist() == [[1]]


def test_a_system_exit_fails_its_batch_alone(serve):
    instance = serve(model('raise SystemExit("no")'))
    assert failures(instance, x(1)) == [(-1, 1, f"{FAILED}SystemExit: no")]
    assert failures(instance, x(1)) == [(-1, 1, f"{FAILED}SystemExit: no")]
