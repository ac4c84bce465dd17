"""Models of a repository that call other models."""

from __future__ import annotations

import numpy as np
import pytest
from pb_models import ASKING, DECOUPLED, SNIPPETS, TEXT, asynchronous, execute, text_of, write
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    at_once,
    bind_floats,
    running_triton,
    send_floats,
    wait_until,
)
from streaming import streamed
from worker_models import command, write_model

from pytriton.model_config import Tensor
from pytriton.proxy.types import Response

OUTPUTS = ("REQUESTED_OUTPUT_1", "REQUESTED_OUTPUT_2")

ASYNC_COUNT = 'await ask("count", 2).async_exec(decoupled=True)'
FORKED = """
def told():
    pb_utils.Logger.log_info("from a fork")
    try:
        return ask("double", 1).exec().error().message()
    except pb_utils.TritonModelException as error:
        return str(error)


class TritonPythonModel:"""


@pytest.fixture(scope="module")
def triton(repository):
    """A server with models to call: ``double``, ``count`` (decoupled), ``report`` and ``bound``."""
    with running_triton(model_repository=repository) as triton:
        triton.run()
        write(triton, repository, "double", ASKING, execute("return [y(2 * x(each)[0]) for each in requests]"))
        count = """
for request in requests:
    sender = request.get_response_sender()
    for value in range(int(x(request)[0])):
        if sender.is_cancelled():
            (HERE / "cancelled").touch()
            break
        sender.send(y(value))
        time.sleep(0.01)
    sender.send(flags=FINAL)
"""
        write(triton, repository, "count", ASKING, execute(count), config=DECOUPLED)
        report = """
return [
    text([
        each.request_id(), each.correlation_id(), each.flags(), each.timeout(), json.loads(each.parameters()),
    ])
    for each in requests
]
"""
        write(triton, repository, "tell", ASKING, execute(report), whole=TEXT)
        bind_floats(triton, "bound", lambda requests: [{"y": each["x"] + 1} for each in requests])
        yield triton


class TestOtherModels:
    def test_a_model_calls_another(self, triton, name, load):
        load(execute('return [y(value_of(ask("double", x(each)[0]).exec())) for each in requests]'))
        assert send_floats(triton, name, [7]) == [14]

    def test_a_model_calls_a_bound_one(self, triton, name, load):
        load(execute('return [y(value_of(ask("bound", x(each)[0]).exec())) for each in requests]'))
        assert send_floats(triton, name, [7]) == [8]

    def test_a_coroutine_calls_several_models_at_a_time(self, triton, name, load):
        body = """
asked = [ask(model, x(requests[0])[0]).async_exec() for model in ("double", "bound", "double")]
return [y(*map(value_of, await asyncio.gather(*asked)))]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [7]) == [14, 8, 14]

    @pytest.mark.parametrize("decoupled", ["", "decoupled=True"])
    def test_a_call_is_sent_before_it_is_awaited(self, triton, name, load, repository, decoupled):
        called = f'open({str(repository / "called")!r}, "w").close()\nreturn [y(5)]'
        write(triton, repository, f"{name}_called", ASKING, execute(called))
        body = f"""
import pathlib
future = ask("{name}_called", 1).async_exec({decoupled})
while not pathlib.Path({str(repository / "called")!r}).exists():
    time.sleep(0.005)
ended = asyncio.Event()
future.add_done_callback(lambda _: ended.set())
await ended.wait()
first, again = await future, await future
return [y(first is again, future.done())]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [1]) == [1, 1]

    def test_calls_can_be_waited_for_together(self, triton, name, load):
        body = """
done, pending = await asyncio.wait([ask("double", number).async_exec() for number in (1, 2, 3)])
return [y(len(pending), *sorted(value_of(each.result()) for each in done))]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [1]) == [0, 2, 4, 6]

    def test_many_calls_at_the_same_time(self, triton, name, load):
        load(asynchronous('return [y(value_of(await ask("double", x(each)[0]).async_exec())) for each in requests]'))
        assert at_once(16, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(16)]

    def test_fields_of_the_request_are_passed_on(self, triton, name, load):
        body = """
more = dict(
    request_id="id", correlation_id="a-sequence", flags=3, timeout=5000000, model_version=1,
    parameters={"a": 1, "b": "é", "c": True, "d": 0.5},
)
response = ask("tell", 1, **more).exec()
return [text(json.loads(response.output_tensors()[0].as_numpy().item()))]
"""
        load(execute(body), whole=TEXT)
        parameters = {"a": 1, "b": "é", "c": True, "d": 0.5}
        assert text_of(triton, name) == ["id", "a-sequence", 3, 5000000, parameters]

    def test_errors_are_in_the_response(self, triton, name, load):
        body = """
told = []
for request in (ask("nobody", 1), ask("double", 1, output="z"), ask("double", 1, name="z")):
    error = request.exec().error()
    told.append([error.code(), error.message()])
return [text(told)]
"""
        load(execute(body), whole=TEXT)
        codes, messages = zip(*text_of(triton, name), strict=True)
        assert codes == (2, 3, 3)
        assert "nobody" in messages[0]

    @pytest.mark.parametrize("kind", ["plain", "async", "async for"])
    def test_a_decoupled_model_is_iterated_over(self, triton, name, load, kind):
        responses = {
            "plain": 'list(ask("count", 3).exec(decoupled=True))',
            "async": 'list(await ask("count", 3).async_exec(decoupled=True))',
            "async for": '[each async for each in await ask("count", 3).async_exec(decoupled=True)]',
        }[kind]
        body = f"""
values = [value_of(each) for each in {responses} if each.output_tensors()]
return [y(*values)]
"""
        load((execute if kind == "plain" else asynchronous)(body))
        assert send_floats(triton, name, [1]) == [0, 1, 2]

    @pytest.mark.parametrize("call", ["exec", "async_exec"])
    def test_several_responses_require_a_decoupled_call(self, triton, name, load, call):
        wait = "" if call == "exec" else "await "
        body = f'return [text([(error := ({wait}ask("count", 3).{call}()).error()).code(), error.message()])]'
        load((execute if call == "exec" else asynchronous)(body), whole=TEXT)
        message = f"model 'count' is decoupled, and sent several responses: use {call}(decoupled=True)"
        assert text_of(triton, name) == [5, message]

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_a_final_flag_alone_is_a_response_without_tensors(self, triton, name, load, kind):
        call = 'ask("count", 2).exec(decoupled=True)' if kind == "plain" else ASYNC_COUNT
        body = f"""
responses = {call}
counts = [len(each.output_tensors()) for each in responses]
return [y(*counts, *(each.has_error() for each in responses))]
"""
        load((execute if kind == "plain" else asynchronous)(body))
        assert send_floats(triton, name, [1]) == [1, 1, 0, 0, 0, 0]

    def test_responses_can_be_read_again(self, triton, name, load):
        body = """
responses = ask("count", 3).exec(decoupled=True)
first = value_of(next(responses))
rest = [value_of(each) for each in responses if each.output_tensors()]
again = [value_of(each) for each in responses if each.output_tensors()]
return [y(first, *rest, *again)]
"""
        load(execute(body))
        assert send_floats(triton, name, [1]) == [0, 1, 2, 0, 1, 2]

    def test_responses_can_be_read_again_in_a_coroutine(self, triton, name, load):
        body = f"""
responses = {ASYNC_COUNT}
values = [value_of(each) async for each in responses if each.output_tensors()]
values += [value_of(each) async for each in responses if each.output_tensors()]
values += [value_of(each) for each in responses if each.output_tensors()]
return [y(*values)]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [1]) == [0, 1, 0, 1, 0, 1]

    def test_the_await_of_a_decoupled_model_ends_with_the_first_response(self, triton, name, load, repository):
        gate = repository / "gate"
        gated = f"""
import pathlib
for request in requests:
    sender = request.get_response_sender()
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.005)
    sender.send(y(7), FINAL)
"""
        write(triton, repository, f"{name}_gated", ASKING, execute(gated), config=DECOUPLED)
        body = f"""
task = asyncio.ensure_future(ask("{name}_gated", 1).async_exec(decoupled=True))
done, _ = await asyncio.wait([task], timeout=0.2)
open({str(gate)!r}, "w").close()
responses = await task
return [y(len(done), *map(value_of, responses))]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [1]) == [0, 7]

    def test_many_decoupled_calls_are_awaited_together(self, triton, name, load):
        body = """
iterators = await asyncio.gather(*(ask("count", number).async_exec(decoupled=True) for number in range(20)))
return [y(*(sum(1 for each in responses if each.output_tensors()) for responses in iterators))]
"""
        load(asynchronous(body))
        assert send_floats(triton, name, [1]) == list(range(20))

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_a_decoupled_call_of_an_unknown_model_has_an_error(self, triton, name, load, kind):
        call = 'ask("nobody", 1).exec(decoupled=True)'
        body = "return [text([each.error().message() for each in {}])]"
        call = call if kind == "plain" else f"await {call.replace('exec', 'async_exec')}"
        load((execute if kind == "plain" else asynchronous)(body.format(call)), whole=TEXT)
        (message,) = text_of(triton, name)
        assert "nobody" in message

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_a_cancelled_stream_continues_until_the_model_ends_it(self, triton, name, load, repository, kind):
        told = """
sender = requests[0].get_response_sender()
sender.send(y(7))
while not sender.is_cancelled():
    time.sleep(0.005)
sender.send(flags=FINAL)
"""
        write(triton, repository, f"{name}_told", ASKING, execute(told), config=DECOUPLED)
        call = f'ask("{name}_told", 1).exec(decoupled=True)'
        body = f"""
responses = {call if kind == "plain" else "await " + call.replace("exec", "async_exec")}
for response in responses:
    if response.has_error():
        return [text(response.error().code() == pb_utils.TritonError.CANCELLED)]
    responses.cancel()
"""
        load((execute if kind == "plain" else asynchronous)(body), whole=TEXT)
        assert text_of(triton, name) is True

    def test_calls_in_a_fork_are_refused(self, triton, name, repository):
        body = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(1) as pool:
    return [text(pool.apply(told, ()))]
"""
        head = ASKING.replace("class TritonPythonModel:", FORKED)
        write(triton, repository, name, head, execute(body), whole=TEXT)
        message = text_of(triton, name)
        assert "is a fork of the one that serves the model" in message
        assert "pytriton.client" in message

    def test_scalars_are_returned_unchanged(self, triton, name, load, repository):
        scalar = execute("return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.array(7, 'f'))])]")
        write(triton, repository, f"{name}_scalar", ASKING, scalar)
        load(execute(f'return [text(ask("{name}_scalar", 1).exec().output_tensors()[0].shape())]'), whole=TEXT)
        assert text_of(triton, name) == []

    def test_abandoned_responses_are_cancelled(self, triton, name, load, repository):
        body = """
responses = ask("count", 100000).exec(decoupled=True)
first = value_of(next(responses))
responses.cancel()
return [y(first)]
"""
        load(execute(body))
        assert send_floats(triton, name, [1]) == [0]
        wait_until((repository / "count" / "1" / "cancelled").exists)

    def test_response_parameters_are_returned(self, triton, name, load):
        triton.bind(
            f"{name}_bound",
            lambda requests: [Response({"y": each["x"]}, parameters={"tokens": 7}) for each in requests],
            FLOATS_IN,
            FLOATS_OUT,
        )
        load(execute(f'return [text(json.loads(ask("{name}_bound", 1).exec().parameters()))]'), whole=TEXT)
        assert text_of(triton, name) == {"tokens": 7}

    def test_a_model_that_calls_itself_gets_an_error(self, triton, name, load):
        body = f"""
response = ask("{name}", 1).exec()
return [pb_utils.InferenceResponse(error=response.error())]
"""
        load(execute(body))
        assert "wait" in send_floats(triton, name, [1])

    def test_threads_call_models_after_execute_has_returned(self, triton, name, load):
        body = """
def respond(sender):
    sender.send(y(value_of(ask("double", 21).exec())), FINAL)

for request in requests:
    threading.Timer(0.02, respond, (request.get_response_sender(),)).start()
"""
        load(execute(body), config=DECOUPLED)
        assert streamed(triton, name, 1)[0] == [42]

    def test_the_snippet(self, triton, name, repository):
        code = (SNIPPETS / "bls.py").read_text()
        triton.bind(
            "model_name",
            lambda requests: [dict.fromkeys(OUTPUTS, each["x"]) for each in requests],
            FLOATS_IN,
            [Tensor(name=output, shape=(-1,), dtype=np.float32) for output in OUTPUTS],
        )
        write_model(repository, name, code=code)
        assert command(triton, name, "load")[0] == 200
        assert send_floats(triton, name, [4]) == [8]
