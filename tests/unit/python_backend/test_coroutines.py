"""Coroutines as ``execute``: ``async def execute``."""

from __future__ import annotations

from sending_models import DECOUPLED, asynchronous, failure, x


def test_a_coroutine_responds_to_each_request_when_it_returns(serve):
    instance = serve(
        asynchronous("""
await asyncio.sleep(0)
responses = [y(request.inputs()[0].as_numpy()[0, 0] * 2) for request in requests]
responses[1] = pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one"))
return responses
""")
    )
    sequence = instance.notify(x(1), x(2))
    assert instance.stream(sequence, 0) == [[[2]]]
    assert failure(instance.stream(sequence, 1)[0]) == (1, "not this one")


def test_several_batches_of_a_coroutine_are_in_flight(serve):
    instance = serve(
        """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate, self.inside = None, 0

    async def execute(self, requests):
        self.gate = self.gate or asyncio.Event()
        self.inside += 1
        if self.inside == 3:
            self.gate.set()
        await self.gate.wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())])]
"""
    )
    sequences = [instance.notify(x(value)) for value in range(3)]
    assert [instance.stream(sequence) for sequence in sequences] == [[[[0]]], [[[1]]], [[[2]]]]


def test_a_sender_may_respond_after_the_coroutine_has_returned(serve):
    instance = serve(
        asynchronous("""
sender = requests[0].get_response_sender()
threading.Timer(0.05, sender.send, (y(7), FINAL)).start()
return [None, y(8)]
""")
    )
    sequence = instance.notify(x(1), x(2))
    assert instance.stream(sequence, 1) == [[[8]]]
    assert instance.stream(sequence, 0) == [[[7]]]


def test_a_sender_cannot_respond_to_a_request_that_has_its_response(serve):
    instance = serve(
        asynchronous("""
sender = requests[0].get_response_sender()
def later():
    try:
        sender.send(y(7), FINAL)
    except pb_utils.TritonModelException as error:
        self.error = str(error)
asyncio.get_running_loop().call_later(0.02, later)
return [y(8)]
""")
    )
    assert instance.stream(instance.notify(x(1))) == [[[8]]]
    assert instance.stream(instance.notify(x(1))) == [[[8]]]


def test_a_coroutine_of_a_decoupled_model_streams(serve):
    instance = serve(
        asynchronous("""
sender = requests[0].get_response_sender()
for value in range(3):
    sender.send(y(value))
    await asyncio.sleep(0.001)
sender.send(flags=FINAL)
"""),
        DECOUPLED,
    )
    first, second = instance.notify(x(1)), instance.notify(x(1))
    assert instance.stream(second) == instance.stream(first) == [[[0]], [[1]], [[2]]]


def test_a_cancelled_coroutine_ends_its_request(serve):
    instance = serve(asynchronous("await asyncio.sleep(1000)"), DECOUPLED)
    sequence = instance.notify(x(1))
    instance.cancel(sequence)
    assert instance.stream(sequence) == []
