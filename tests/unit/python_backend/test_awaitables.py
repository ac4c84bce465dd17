"""``execute`` that is not a coroutine function, and returns something to await."""

from __future__ import annotations

import gc

import pytest
from declared import config_of
from sending_models import DECOUPLED, DROPPED, HEAD, failure, unrecognized, x
from wiring import Wire, next_notification

from pytriton.proxy.wire.notification import NotificationKind
from pytriton.proxy.wire.registration import ExecutionMode
from pytriton.proxy.worker.coroutines import close_unstarted
from pytriton.proxy.worker.worker import Worker
from pytriton.python_backend import loader

PASSING_ON = """
def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)
    return call
"""
RUNNING = """
def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return asyncio.run(function(*args))
    return call
"""
RUNNING_IN_ITS_LOOP = """
LOOP = asyncio.new_event_loop()

def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return LOOP.run_until_complete(function(*args))
    return call
"""
DECORATED = "@decorated\n    async def execute(self, requests):"
RETURNED = "def execute(self, requests):\n        return self.answer(requests)\n\n    async def answer(self, requests):"
FUTURE = """def execute(self, requests):
        return Wrapped(self.answer(requests))

    async def answer(self, requests):"""
WRAPPED = """
class Wrapped:
    def __init__(self, coroutine):
        self.coroutine = coroutine
    def __await__(self):
        return self.coroutine.__await__()
"""
KINDS = {
    "decorated": (PASSING_ON, DECORATED),
    "runs": (RUNNING, DECORATED),
    "runs in a loop of its own": (RUNNING_IN_ITS_LOOP, DECORATED),
    "returned": ("", RETURNED),
    "awaitable": (WRAPPED, FUTURE),
}
ANSWERS = """
await asyncio.sleep(0)
return [y(request.inputs()[0].as_numpy()[0, 0] * 2) for request in requests]
"""
SENDS = """
await asyncio.sleep(0)
for request in requests:
    sender = request.get_response_sender()
    for value in range(3):
        sender.send(y(value))
    sender.send(flags=FINAL)
"""
MEETING = """
self.arrived = getattr(self, "arrived", 0) + 1
self.gate = getattr(self, "gate", None) or asyncio.Event()
if self.arrived == 3:
    self.gate.set()
await self.gate.wait()
"""

every_kind = pytest.mark.parametrize("kind", KINDS)
passed_on = pytest.mark.parametrize("kind", ["decorated", "returned", "awaitable"])


def source(kind, body):
    before, head = KINDS[kind]
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    class_head = f"import functools\n{before}\nclass TritonPythonModel:\n"
    return HEAD.replace("class TritonPythonModel:\n", class_head) + f"    {head}\n{lines}\n"


def unrecognized_source(kind, body):
    return unrecognized(source(kind, body))


def is_deferred(kind):
    return KINDS[kind][1] is DECORATED


def responses_of(instance, kind, *requests):
    """The responses to one batch of a model that is not decoupled."""
    sequence = instance.notify(*requests)
    if is_deferred(kind):
        return [instance.stream(sequence, index)[0] for index in range(len(requests))]
    result, outputs = instance.response([1] * len(requests))
    assert result.failures == []
    return [array.tolist() for array in outputs["y"]]


@every_kind
def test_it_responds_to_each_request(serve, kind):
    instance = serve(source(kind, ANSWERS))
    for value in range(3):
        assert responses_of(instance, kind, x(value), x(1)) == [[[2 * value]], [[2]]]


@every_kind
def test_it_sends_responses(serve, kind):
    instance = serve(source(kind, SENDS), DECOUPLED)
    for _ in range(2):
        sequence = instance.notify(x(1), x(2))
        assert [instance.stream(sequence, index) for index in range(2)] == [[[[0]], [[1]], [[2]]]] * 2


@pytest.mark.parametrize("kind", ["decorated", "returned"])
def test_many_batches_of_a_decoupled_model_are_in_flight(serve, kind):
    instance = serve(source(kind, MEETING + SENDS), DECOUPLED)
    sequences = [instance.notify(x(1)) for _ in range(3)]
    assert [instance.stream(sequence) for sequence in sequences] == [[[[0]], [[1]], [[2]]]] * 3


def test_many_batches_of_a_decorated_coroutine_are_in_flight(serve):
    instance = serve(source("decorated", MEETING + ANSWERS))
    sequences = [instance.notify(x(value)) for value in range(3)]
    assert [instance.stream(sequence) for sequence in sequences] == [[[[0]]], [[[2]]], [[[4]]]]


def test_the_server_is_notified_once_that_the_next_batch_is_taken(serve, tmp_path):
    gate = tmp_path / "gate"
    body = f"""
while not os.path.exists({str(gate)!r}):
    await asyncio.sleep(0.001)
asyncio.get_running_loop().call_later(0.01, requests[0].get_response_sender().send, y(1), FINAL)
return [None]
"""
    instance = serve(source("decorated", body).replace("import functools", "import functools, os"))
    sequences = [instance.notify(x(1)) for _ in range(3)]
    for sequence in sequences:
        notification = next_notification(instance.channel)
        assert (notification.kind, notification.sequence) == (NotificationKind.RETURNED, sequence)
    gate.touch()
    assert [instance.stream(sequence) for sequence in sequences] == [[[[1]]]] * 3
    assert instance.returned == []


@passed_on
@pytest.mark.parametrize("decoupled", [False, True])
def test_its_exceptions_fail_the_batch(serve, kind, decoupled):
    body = 'await asyncio.sleep(0)\nraise ValueError("no weights")'
    instance = serve(source(kind, body), config_of(decoupled=decoupled))
    sequence = instance.notify(x(1))
    if decoupled or is_deferred(kind):
        (item,) = instance.stream(sequence)
    else:
        result, _ = instance.response([1])
        (item,) = result.failures
    assert item.message == "Failed to process the request(s) for model 'm_0_0', message: ValueError: no weights"
    assert "/model.py" in item.detail


@passed_on
def test_a_list_of_a_decoupled_model_is_refused(serve, kind):
    instance = serve(source(kind, "return [y(1)]"), DECOUPLED)
    (item,) = instance.stream(instance.notify(x(1)))
    assert "is decoupled, and its execute() returned list: return None" in item.message


@passed_on
def test_a_sender_may_respond_later(serve, kind):
    body = """
async def answer(sender):
    await asyncio.sleep(0.05)
    sender.send(y(7), FINAL)

self.task = asyncio.ensure_future(answer(requests[0].get_response_sender()))
return [None, y(8)]
"""
    instance = serve(unrecognized_source(kind, body))
    sequence = instance.notify(x(1), x(2))
    if is_deferred(kind):
        assert (instance.stream(sequence, 1), instance.stream(sequence, 0)) == ([[[8]]], [[[7]]])
    else:
        _, outputs = instance.response([1, 1])
        assert [array.tolist() for array in outputs["y"]] == [[[7]], [[8]]]


@passed_on
def test_sent_responses_are_kept_when_execute_fails(serve, kind):
    body = "requests[0].get_response_sender().send(y(7), FINAL)\nraise ValueError('no luck')"
    instance = serve(unrecognized_source(kind, body))
    sequence = instance.notify(x(1), x(2))
    if is_deferred(kind):
        responses, failed = instance.stream(sequence, 0), failure(instance.stream(sequence, 1)[0])
        assert responses == [[[7]]]
    else:
        result, outputs = instance.response([1, 1])
        assert outputs["y"][0].tolist() == [[7]]
        (failed,) = map(failure, result.failures)
    assert "ValueError: no luck" in failed[-1]


@passed_on
def test_a_request_whose_sender_is_dropped_fails(serve, kind):
    instance = serve(
        unrecognized_source(kind, "request = requests.pop()\nrequest.get_response_sender()\nreturn [None]")
    )
    sequence = instance.notify(x(1))
    if is_deferred(kind):
        item = failure(instance.stream(sequence)[0])
    else:
        item = failure(instance.response([1])[0].failures[0])
    assert item == (1, DROPPED)


def test_an_abandoned_call_is_cancelled(serve, tmp_path):
    body = f"""
try:
    await asyncio.sleep(60)
except asyncio.CancelledError:
    open({str(tmp_path / "cancelled")!r}, "w").close()
    raise
"""
    instance = serve(source("decorated", body))
    sequence = instance.notify(x(1))
    assert next_notification(instance.channel).kind == NotificationKind.RETURNED
    instance.cancel(sequence)
    assert instance.stream(sequence) == []
    assert (tmp_path / "cancelled").exists()


@pytest.mark.parametrize(("kind", "decoupled"), [("decorated", False), ("returned", False), ("returned", True)])
def test_a_call_that_is_never_awaited_is_closed_as_a_whole(repository, recwarn, kind, decoupled):
    loaded = loader.load(repository(source(kind, ANSWERS), config_of(decoupled=decoupled)))
    connection = Wire.of(loaded.signature)
    arguments = [respond] if decoupled or is_deferred(kind) else []
    close_unstarted(loaded.infer_func(connection.batch(x(1)).requests(), *arguments))
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
    connection.close()


def respond(request, item, final, later=False):
    pass


@pytest.mark.parametrize(
    ("kind", "decoupled", "mode"),
    [
        ("decorated", False, ExecutionMode.DEFERRED),
        ("runs", False, ExecutionMode.DEFERRED),
        ("returned", False, ExecutionMode.SEQUENTIAL),
        ("returned", True, ExecutionMode.DEFERRED),
    ],
)
def test_the_execution_mode_depends_on_what_is_decorated(repository, kind, decoupled, mode):
    loaded = loader.load(repository(source(kind, ANSWERS), config_of(decoupled=decoupled)))
    assert Worker(loaded.infer_func, loaded.signature).mode is mode
