"""Responses that are sent after ``execute`` has returned, by response senders."""

from __future__ import annotations

import threading

import pytest
from sending_models import DECOUPLED, DROPPED, asynchronous, failure, model, x
from wiring import TIMEOUT_S, next_notification, wait_until

from pytriton.proxy.wire.inference import RESCHEDULE
from pytriton.proxy.wire.notification import NotificationKind


def test_responses_are_sent_one_after_the_other(serve):
    instance = serve(
        model("""
for request in requests:
    sender = request.get_response_sender()
    for value in range(3):
        sender.send(y(value))
    sender.send(flags=FINAL)
"""),
        DECOUPLED,
    )
    sequence = instance.notify(x(1), x(2))
    assert instance.stream(sequence, 0) == [[[0]], [[1]], [[2]]]
    assert instance.stream(sequence, 1) == [[[0]], [[1]], [[2]]]


def test_the_last_response_may_have_the_final_flag(serve):
    instance = serve(model("requests[0].get_response_sender().send(y(1), FINAL)"), DECOUPLED)
    assert instance.stream(instance.notify(x(1))) == [[[1]]]


def test_a_request_may_get_no_response(serve):
    instance = serve(model("requests[0].get_response_sender().send(flags=FINAL)"), DECOUPLED)
    assert instance.stream(instance.notify(x(1))) == []


def test_threads_send_after_execute_has_returned(serve, tmp_path):
    gate = tmp_path / "gate"
    instance = serve(
        model(f"""
def respond(sender, value):
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.001)
    for _ in range(2):
        sender.send(y(value))
    sender.send(flags=FINAL)

for request in requests:
    value = request.inputs()[0].as_numpy()[0, 0]
    threading.Thread(target=respond, args=(request.get_response_sender(), value)).start()
"""),
        DECOUPLED,
    )
    sequences = [instance.notify(x(value), x(-value)) for value in range(5)]
    instance.wait_for_returns(len(sequences))
    gate.touch()
    for value, sequence in enumerate(sequences):
        assert instance.stream(sequence, 1) == [[[-value]], [[-value]]]
        assert instance.stream(sequence, 0) == [[[value]], [[value]]]
    assert instance.returned == sequences


def test_execute_is_called_in_one_thread_for_one_batch_at_a_time(serve):
    instance = serve(
        """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.threads, self.inside = set(), 0

    def execute(self, requests):
        self.inside += 1
        assert self.inside == 1
        self.threads.add(threading.get_ident())
        array = np.array([[len(self.threads)]], np.float32)
        sender = requests[0].get_response_sender()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("y", array)])
        threading.Timer(0.05, sender.send, (response, 1)).start()
        self.inside -= 1
""",
        DECOUPLED,
    )
    sequences = [instance.notify(x(1)) for _ in range(10)]
    assert [instance.stream(sequence) for sequence in sequences] == [[[[1]]]] * 10


def test_the_server_is_notified_when_execute_has_returned_before_the_responses(serve):
    instance = serve(
        model("threading.Timer(0.2, requests[0].get_response_sender().send, (y(1), FINAL)).start()"), DECOUPLED
    )
    sequence = instance.notify(x(1))
    notification = next_notification(instance.channel)
    assert (notification.kind, notification.sequence) == (NotificationKind.RETURNED, sequence)
    assert instance.stream(sequence) == [[[1]]]


def test_arrays_may_be_changed_as_soon_as_they_are_sent(serve):
    for source in (model, asynchronous):
        instance = serve(
            source("""
sender = requests[0].get_response_sender()
array = np.zeros((1, 1), np.float32)
for value in range(3):
    array[:] = value
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
sender.send(flags=FINAL)
"""),
            DECOUPLED,
        )
        assert instance.stream(instance.notify(x(1))) == [[[0]], [[1]], [[2]]]


def test_undeclared_outputs_are_dropped(serve, caplog):
    for source in (model, asynchronous):
        instance = serve(
            source("""
sender = requests[0].get_response_sender()
for value in range(3):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("z", np.zeros(1)), *y(value).output_tensors()]))
sender.send(flags=FINAL)
"""),
            DECOUPLED,
        )
        assert instance.stream(instance.notify(x(1))) == [[[0]], [[1]], [[2]]]
        assert [each.getMessage().count("an output 'z'") for each in caplog.records] == [1]
        caplog.clear()


def test_an_error_is_sent_like_a_response(serve):
    instance = serve(
        model("""
sender = requests[0].get_response_sender()
sender.send(y(1))
error = pb_utils.TritonError("out of words", pb_utils.TritonError.UNAVAILABLE)
sender.send(pb_utils.InferenceResponse(error=error), FINAL)
"""),
        DECOUPLED,
    )
    items = instance.stream(instance.notify(x(1)))
    assert items[0] == [[1]]
    assert failure(items[1]) == (4, "out of words")


def test_others_may_follow_a_response_with_an_error(serve):
    for source in (model, asynchronous):
        instance = serve(
            source("""
sender = requests[0].get_response_sender()
sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of words")))
for number in range(2):
    sender.send(y(number))
sender.send(flags=FINAL)
try:
    sender.send(y(3))
except pb_utils.TritonModelException as error:
    assert "has been closed" in str(error)
else:
    raise AssertionError
"""),
            DECOUPLED,
        )
        instance.notify(x(1))
        entries = [instance.next_response()[0] for _ in range(4)]
        assert failure(entries[0].failure) == (1, "out of words")
        assert [entry.final for entry in entries] == [False, False, False, True]
        assert [entry.failure for entry in entries[1:]] == [None] * 3


def test_a_sender_that_is_dropped_after_an_error_ends_its_request(serve):
    body = "requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no')))"
    instance = serve(model(f"{body}\nrequests.clear()"), DECOUPLED)
    instance.notify(x(1))
    error, end = [instance.next_response()[0] for _ in range(2)]
    assert (failure(error.failure), error.final) == ((1, "no"), False)
    assert (end.failure, end.final) == (None, True)


def test_each_response_has_its_own_parameters(serve):
    instance = serve(
        model("""
sender = requests[0].get_response_sender()
for number in range(2):
    tensors = y(number).output_tensors()
    sender.send(pb_utils.InferenceResponse(tensors, parameters={"number": number} if number else None))
sender.send(flags=FINAL)
"""),
        DECOUPLED,
    )
    instance.notify(x(1))
    assert [instance.next_response()[0].parameters for _ in range(3)] == [{}, {"number": 1}, {}]


def test_an_exception_ends_open_requests(serve):
    instance = serve(
        model("""
senders = [request.get_response_sender() for request in requests]
senders[0].send(y(1), FINAL)
raise ValueError("the rest fails")
"""),
        DECOUPLED,
    )
    sequence = instance.notify(x(1), x(2))
    assert instance.stream(sequence, 0) == [[[1]]]
    (item,) = instance.stream(sequence, 1)
    assert item.message == "Failed to process the request(s) for model 'm_0_0', message: ValueError: the rest fails"
    assert 'model.py", line 18, in execute' in item.detail


def test_a_returned_list_is_refused(serve):
    instance = serve(model("return [y(1)]"), DECOUPLED)
    (item,) = instance.stream(instance.notify(x(1)))
    assert "is decoupled, and its execute() returned list: return None" in item.message


@pytest.mark.parametrize("body", ["pass", "requests.pop().get_response_sender().send(y(1))"])
def test_a_request_whose_sender_is_dropped_fails(serve, body):
    for source in (model, asynchronous):
        instance = serve(source(body), DECOUPLED)
        assert failure(instance.stream(instance.notify(x(1)))[-1]) == (1, DROPPED)


def test_a_request_in_a_cycle_of_references_fails_when_it_is_collected(serve):
    instance = serve(
        model("""
cycle = [requests[0].get_response_sender()]
cycle.append(cycle)
del requests[:], cycle
import gc
gc.collect()
"""),
        DECOUPLED,
    )
    assert failure(instance.stream(instance.notify(x(1)))[-1]) == (1, DROPPED)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("send()", "neither a response nor the final flag"),
        ("send(y(1), 2)", "Unsupported flags 2"),
        ("send([1])", "a response of type list"),
        ("send(y(1), '1')", "flags='1', of type str"),
        ("send(y(1), 1.0)", "flags=1.0, of type float"),
        ("send(flags=FINAL); sender.send(y(1))", "Unable to send response. Response sender has been closed."),
        ("send(flags=FINAL); sender.send(flags=FINAL)", "Response sender has been closed."),
    ],
)
def test_an_invalid_response_is_refused_where_it_is_sent(serve, call, message):
    instance = serve(
        model(f"""
sender = requests[0].get_response_sender()
other = requests[1].get_response_sender()
try:
    sender.{call}
except (pb_utils.TritonModelException, TypeError) as error:
    other.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), FINAL)
"""),
        DECOUPLED,
    )
    (item,) = instance.stream(instance.notify(x(1), x(2)), 1)
    assert message in item.message


def test_an_invalid_output_is_an_error_for_model_and_client(serve):
    instance = serve(
        model("""
sender = requests[0].get_response_sender()
try:
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array(["\\ud800"], object))]), FINAL)
except pb_utils.TritonModelException as error:
    requests[1].get_response_sender().send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), FINAL)
"""),
        DECOUPLED,
    )
    sequence = instance.notify(x(1), x(2))
    for request in (0, 1):
        (item,) = instance.stream(sequence, request)
        assert "contains '\\ud800', which UTF-8 cannot encode" in item.message


def test_a_request_is_returned_to_the_server(serve):
    for source in (model, asynchronous):
        instance = serve(
            source("""
for request in requests:
    request.get_response_sender().send(y(1))
requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
requests[1].get_response_sender().send(flags=FINAL)
"""),
            DECOUPLED,
        )
        sequence = instance.notify(x(1), x(2))
        items = instance.stream(sequence, 0)
        assert items[0] == [[1]]
        assert failure(items[1]) == (RESCHEDULE, "")
        assert instance.stream(sequence, 1) == [[[1]]]


def test_a_cancelled_request_is_ended_once_its_whole_batch_is_cancelled(serve):
    instance = serve(
        """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.senders = []

    def execute(self, requests):
        self.senders += [request.get_response_sender() for request in requests]
""",
        DECOUPLED,
    )
    sequence = instance.notify(x(1), x(2))
    assert next_notification(instance.channel).kind == NotificationKind.RETURNED
    instance.cancel(sequence, 0)
    instance.cancel(sequence, 1)
    assert [instance.stream(sequence, request) for request in (0, 1)] == [[], []]


def test_senders_that_are_kept_are_ended_when_the_worker_is_closed(serve):
    source = """
class TritonPythonModel:
    senders = []

    def execute(self, requests):
        self.senders += [request.get_response_sender() for request in requests]
"""
    instance = serve(source, DECOUPLED)
    sequence = instance.notify(x(1))
    assert next_notification(instance.channel).kind == NotificationKind.RETURNED
    closing = threading.Thread(target=instance.worker.close, args=(TIMEOUT_S,))
    closing.start()
    (item,) = instance.stream(sequence)
    assert item.code == 4
    assert "the model is being unloaded" in item.message
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()


def test_of_many_threads_one_ends_a_request(serve):
    instance = serve(
        model("""
for request in requests:
    sender = request.get_response_sender()
    for _ in range(8):
        def end(sender=sender):
            try:
                sender.send(y(1), FINAL)
            except pb_utils.TritonModelException:
                pass
        threading.Thread(target=end).start()
"""),
        DECOUPLED,
    )
    for _ in range(20):
        sequence = instance.notify(x(1), x(2))
        assert [instance.stream(sequence, request) for request in (0, 1)] == [[[[1]]], [[[1]]]]


def test_memory_of_inputs_is_released_with_the_responses(serve):
    instance = serve(
        model("""
sender = requests[0].get_response_sender()
threading.Thread(target=sender.send, args=(y(1), FINAL)).start()
"""),
        DECOUPLED,
    )
    for _ in range(5):
        assert instance.stream(instance.notify(x(1))) == [[[1]]]
    wait_until(lambda: instance.connection.arena.in_use() <= 1)


def test_a_model_that_is_not_decoupled_may_respond_after_the_next_call(serve):
    instance = serve(
        model("""
global held
value = requests[0].inputs()[0].as_numpy()[0, 0]
if value:
    held = requests[0].get_response_sender()
else:
    requests[0].get_response_sender().send(y(0), FINAL)
    held.send(y(1), FINAL)
"""),
    )
    first, second = instance.notify(x(1)), instance.notify(x(0))
    entries = [instance.next_response()[0] for _ in range(2)]
    assert {entry.sequence for entry in entries} == {first, second}
    assert all(entry.final and entry.failure is None for entry in entries)


@pytest.mark.parametrize("define", [model, asynchronous])
def test_an_exception_after_the_last_response_is_logged_with_its_traceback(serve, caplog, define):
    body = "requests[0].get_response_sender().send(y(1), FINAL)\nraise KeyError('the rest')"
    instance = serve(define(body), DECOUPLED)
    assert instance.stream(instance.notify(x(1))) == [[[1]]]
    wait_until(lambda: "the rest" in caplog.text)
    (record,) = [each for each in caplog.records if "the rest" in each.getMessage()]
    assert record.levelname == "ERROR"
    assert "'m' failed after all its responses had been sent.\n" in record.getMessage()
    assert 'model.py", line 17, in execute' in record.getMessage()
