"""``execute`` that is not a coroutine function, and returns something to await."""

from __future__ import annotations

import pytest
from pb_models import DECOUPLED, HEAD, execute, write
from serving import at_once, send_floats
from streaming import streamed

DECORATORS = """
import functools

def passed_on(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)
    return call

def run(function):
    @functools.wraps(function)
    def call(*args):
        return asyncio.run(function(*args))
    return call

def run_in_the_threads_loop(function):
    @functools.wraps(function)
    def call(*args):
        return asyncio.get_event_loop().run_until_complete(function(*args))
    return call


class TritonPythonModel:
"""
AWAITED = HEAD.replace("class TritonPythonModel:\n", DECORATORS)
HEADS = {
    "decorated": "@passed_on\nasync ",
    "run by its decorator": "@run\nasync ",
    "run by its decorator in the thread's loop": "@run_in_the_threads_loop\nasync ",
    "returned": "def execute(self, requests):\n    return self.respond(requests)\n\nasync ",
}
every_kind = pytest.mark.parametrize("kind", HEADS)

ANSWERS = """
await asyncio.sleep(0.001)
return [y(2 * x(request)[0]) for request in requests]
"""
SENDS = """
await asyncio.sleep(0.001)
for request in requests:
    sender = request.get_response_sender()
    for value in range(int(x(request)[0])):
        sender.send(y(value))
    sender.send(flags=FINAL)
"""
MEETS = """
self.gate = getattr(self, "gate", None) or asyncio.Event()
self.arrived = getattr(self, "arrived", 0) + 1
if self.arrived == 3:
    self.gate.set()
await self.gate.wait()
"""


@pytest.fixture
def load(triton, repository, name):
    def load(kind, body, **more):
        method = execute(body).replace("execute", "respond") if kind == "returned" else execute(body)
        return write(triton, repository, name, AWAITED, HEADS[kind] + method, **more)

    return load


@every_kind
def test_it_responds(triton, name, load, kind):
    load(kind, ANSWERS)
    assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(8)]


@every_kind
def test_it_sends_responses(triton, name, load, kind):
    load(kind, SENDS, config=DECOUPLED)
    for number in (2, 0, 3):
        assert streamed(triton, name, number)[0] == [*range(number), None]


@pytest.mark.parametrize("kind", ["decorated", "returned"])
def test_its_exceptions_reach_the_client(triton, name, load, kind):
    load(kind, 'await asyncio.sleep(0)\nraise ValueError("no weights")')
    message = f"Failed to process the request(s) for model '{name}_0', message: ValueError: no weights"
    assert [send_floats(triton, name, [1]) for _ in range(2)] == [message] * 2


def test_many_batches_of_a_decorated_coroutine_are_in_flight(triton, name, load):
    load("decorated", MEETS + ANSWERS)
    assert at_once(3, lambda number: send_floats(triton, name, [number])) == [[0], [2], [4]]


@pytest.mark.parametrize("kind", ["decorated", "returned"])
def test_many_batches_of_a_decoupled_model_are_in_flight(triton, name, load, kind):
    load(kind, MEETS + SENDS, config=DECOUPLED)
    assert at_once(3, lambda number: streamed(triton, name, number)[0]) == [[None], [0, None], [0, 1, None]]


def test_it_calls_other_models(triton, repository, name, load):
    write(triton, repository, f"{name}_other", HEAD, execute("return [y(x(each)[0] + 1) for each in requests]"))
    body = f"""
request = pb_utils.InferenceRequest(
    model_name="{name}_other", requested_output_names=["y"], inputs=requests[0].inputs()
)
return [pb_utils.InferenceResponse((await request.async_exec()).output_tensors())]
"""
    load("returned", body)
    assert send_floats(triton, name, [4]) == [5]
