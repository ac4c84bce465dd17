"""OpenTelemetry's spans of a request: from the client through Triton to the worker, and on to other models."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time

import cloudpickle
import numpy as np
import pytest
from client.client_kinds import STREAM_KINDS, every_kind, open_client, url_of
from gateways import gateway_of
from opentelemetry import trace
from otlp import Receiver
from pb_models import HEAD
from serving import (
    Background,
    bind_floats,
    client_of,
    json_floats,
    request_json,
    running_triton,
    send_floats,
    server_of,
)
from worker_models import write_model

from pytriton.client import AsyncioDecoupledModelClient
from pytriton.decorators import batch, triton_context
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.process import ProcessInstance
from pytriton.proxy.telemetry import traced_span

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARENT = "00f067aa0ba902b7"  # the client's span
CLIENT = 3  # OpenTelemetry's number of that kind

seen = []


@batch
def double(x):
    return [x * 2]


def details(requests):
    for request in requests:
        with request.traced_span("of the request"):
            pass
        with traced_span(request, "of the function", attributes={"size": 1}):
            pass
        trace.get_current_span().set_attribute("added", "here")
    return [{"y": request["x"]} for request in requests]


@batch
@triton_context
def chain(triton_context, x):
    return [triton_context.infer("double", {"x": x})["y"]]


async def coroutine(requests):
    seen.append(trace.get_current_span().get_span_context().span_id)
    await asyncio.sleep(0)
    return [{"y": request["x"]} for request in requests]


def stream(requests):
    for _ in range(3):
        yield [{"y": request["x"]} for request in requests]


async def async_stream(requests):
    for _ in range(3):
        yield [{"y": request["x"]} for request in requests]


def one(requests):
    yield [{"y": request["x"]} for request in requests]


def fail(requests):
    raise ValueError("it is broken")


def refuse(requests):
    return [PyTritonInvalidRequestError("not this one") for _ in requests]


def in_process():
    return details


@pytest.fixture(scope="module")
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def triton(receiver, tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "repeat", code=HEAD + REPEAT)
    with running_triton(trace_config=receiver.trace_config(), model_repository=repository) as triton:
        for function in (details, chain, coroutine, fail, refuse):
            bind_floats(triton, function.__name__, function)
        bind_floats(triton, "double", double, config=ModelConfig(max_batch_size=8))
        bind_floats(triton, "in_process", ProcessInstance(in_process))
        slow = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=2_000_000))
        bind_floats(triton, "together", double, config=slow)
        for function in (one, stream, async_stream):
            bind_floats(triton, function.__name__, function, config=ModelConfig(decoupled=True))
        triton.run()
        yield triton


REPEAT = """
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["y"], inputs=request.inputs(), trace=request.trace()
            )
            values = call.exec().output_tensors()[0].as_numpy()
            context = json.loads(request.trace().get_context())["traceparent"]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", values)]))
            assert len(context.split("-")) == 4
        return responses
"""


def is_chain(*spans):
    """Whether each span is the parent of the next one, in one trace."""
    return all(span.id == after.parent and span.trace == after.trace for span, after in itertools.pairwise(spans))


def send(triton, model, headers):
    """Sends a request with these headers; returns the status of the response."""
    body = {"inputs": [json_floats([1])]}
    return request_json(triton, "POST", f"/v2/models/{model}/infer", body, headers=headers)[0]


def new_context():
    """A trace's id, and the headers of a client that has begun it."""
    trace_id = f"{time.monotonic_ns():032x}"
    return trace_id, {"traceparent": f"00-{trace_id}-{PARENT}-01"}


def test_a_trace_goes_from_the_client_through_triton_to_the_call(triton, receiver):
    trace_id, headers = new_context()
    assert send(triton, "double", headers) == 200

    root, model, request, call = receiver.wait_for(
        "InferRequest", "double", "request double", "call double", trace=trace_id
    )

    assert root.parent == PARENT
    assert is_chain(root, model, request, call)
    assert call.links == {request.id}
    assert request.service == call.service == root.service == "tests"
    assert request.attributes == {"triton.model_name": "double", "triton.model_version": 1, "pytriton.request.rows": 1}
    assert call.attributes["pytriton.batch.requests"] == call.attributes["pytriton.batch.rows"] == 1
    assert root.start <= request.start <= call.start <= call.end <= request.end <= root.end


@every_kind
def test_clients_start_a_span_and_pass_it_on(triton, receiver, kind, protocol):
    name = "one" if kind in STREAM_KINDS else "double"
    # Triton 2.51 overlooks one in fifty contexts that come over gRPC.
    with open_client(kind, url_of(triton, protocol), name) as client:
        for _ in range(3):
            client.infer_sample([1])

    def found():
        servers = [span for span in receiver.spans() if span.name == "InferRequest"]
        clients = [span for span in receiver.spans() if span.name == f"infer {name}" and span.kind == CLIENT]
        port = triton.config.http_port if protocol == "http" else triton.config.grpc_port
        return [
            client
            for client in clients
            for server in servers
            if is_chain(client, server) and client.attributes["server.port"] == port and not client.parent
        ]

    receiver.wait_until(found)


@pytest.mark.parametrize("kind", ["blocking", "asyncio", "decoupled"])
def test_a_span_has_the_address_of_the_requested_server(triton, receiver, kind):
    name, url = "one" if kind in STREAM_KINDS else "double", url_of(triton, "grpc")
    found = len(receiver.spans())
    for urls in (["grpc://127.0.0.1:1", url], lambda: [url, "grpc://127.0.0.1:1"]):
        with open_client(kind, urls, name) as client:
            for _ in range(2):
                client.infer_sample([1])

    def ports():
        spans = [span for span in receiver.spans()[found:] if span.name == f"infer {name}" and span.kind == CLIENT]
        return {span.attributes["server.port"] for span in spans} if len(spans) == 4 else None

    assert receiver.wait_until(ports) == {triton.config.grpc_port}


def test_a_client_passes_on_a_given_context(triton, receiver):
    trace_id, headers = new_context()
    with open_client("blocking", url_of(triton, "http"), "double") as client:
        client.infer_sample([1], headers=headers)
    (root,) = receiver.wait_for("InferRequest", trace=trace_id)
    assert root.parent == PARENT


def test_an_error_of_a_client_is_recorded_in_its_span(triton, receiver):
    with open_client("blocking", url_of(triton, "http"), "fail") as client, pytest.raises(Exception, match="broken"):
        client.infer_sample([1])
    (span,) = receiver.wait_for("infer fail")
    assert "it is broken" in span.failed
    assert span.attributes["error.type"].endswith("PyTritonClientInferenceServerError")


def test_a_request_has_a_span_and_the_call_is_current(triton, receiver):
    trace_id, headers = new_context()
    send(triton, "details", headers)
    request, call, one, other = receiver.wait_for(
        "request details", "call details", "of the request", "of the function", trace=trace_id
    )
    assert is_chain(request, one)
    assert is_chain(request, other)
    assert other.attributes == {"size": 1}
    assert call.attributes["added"] == "here"


def test_requests_without_a_trace_have_no_span():
    found = []

    def look(requests):
        found.extend(request.span for request in requests)
        return [{"y": request["x"]} for request in requests]

    with running_triton() as untraced:
        bind_floats(untraced, "look", look)
        untraced.run()
        send_floats(untraced, "look", [1])
    assert found == [None]


def test_the_call_of_a_batch_has_links_to_all_its_requests(triton, receiver):
    contexts = [new_context() for _ in range(8)]
    for sent in [Background(lambda headers=headers: send(triton, "together", headers)) for _, headers in contexts]:
        sent.join()
    requests = [receiver.wait_for("request together", trace=trace_id)[0] for trace_id, _ in contexts]
    (call,) = receiver.wait_for("call together")
    assert call.links == {request.id for request in requests}
    assert call.attributes["pytriton.batch.requests"] == 8
    first = next(request for request in requests if request.id == call.parent)
    assert all(call.id in request.links for request in requests if request is not first)


def test_a_call_of_another_model_continues_the_trace(triton, receiver):
    trace_id, headers = new_context()
    send(triton, "chain", headers)
    call, infer, request, inner, queue, compute = receiver.wait_for(
        "call chain", "infer double", "request double", "call double", "queue", "compute", trace=trace_id
    )
    assert is_chain(call, infer, request, inner)
    assert infer.kind == CLIENT
    (queue,) = [span for span in receiver.spans(trace_id) if span.name == "queue" and span.parent == infer.id]
    (compute,) = [span for span in receiver.spans(trace_id) if span.name == "compute" and span.parent == infer.id]
    assert infer.start <= queue.start <= queue.end
    assert abs(queue.end - compute.start) < 1000  # ns: Triton notes both times at once, and rounds them
    assert compute.start <= request.start
    assert request.end <= compute.end


@pytest.mark.parametrize("inner", [double, ProcessInstance(lambda: double)], ids=["thread", "process"])
def test_a_call_of_another_model_begins_no_trace(inner):
    with Receiver() as receiver, running_triton(trace_config=receiver.trace_config(rate=0)) as triton:
        bind_floats(triton, "double", inner)
        bind_floats(triton, "chain", chain)
        triton.run()
        assert send(triton, "chain", {}) == 200
        trace_id, headers = new_context()
        assert send(triton, "chain", headers) == 200
        spans = receiver.wait_for("infer double", "request double", trace=trace_id)
        assert {span.trace for span in receiver.spans() if span.name.endswith(" double")} == {spans[0].trace}


def test_a_coroutine_runs_in_its_calls_span(triton, receiver):
    trace_id, headers = new_context()
    send(triton, "coroutine", headers)
    request, call = receiver.wait_for("request coroutine", "call coroutine", trace=trace_id)
    assert is_chain(request, call)
    assert f"{seen[-1]:016x}" == call.id


async def read(url, name):
    """Reads a stream to its end."""
    async with AsyncioDecoupledModelClient(url, name) as client:
        return [response async for response in client.infer_sample([1])]


@pytest.mark.parametrize("name", ["stream", "async_stream"])
def test_a_streams_span_counts_its_responses(triton, receiver, name):
    assert len(asyncio.run(read(url_of(triton, "grpc"), name))) == 3
    request, call = receiver.wait_for(f"request {name}", f"call {name}")
    assert is_chain(request, call)
    assert request.attributes["pytriton.response.count"] == 3
    assert request.events == ["first response"]


def test_an_error_is_recorded_in_the_spans_of_call_and_request(triton, receiver):
    trace_id, headers = new_context()
    assert send(triton, "fail", headers) == 500
    for span in receiver.wait_for("request fail", "call fail", trace=trace_id):
        assert span.failed == "it is broken"
        assert span.attributes["error.type"] == "ValueError"
        assert "exception" in span.events


def test_an_error_in_place_of_a_response_is_recorded_in_the_requests_span(triton, receiver):
    trace_id, headers = new_context()
    assert send(triton, "refuse", headers) == 400
    request, call = receiver.wait_for("request refuse", "call refuse", trace=trace_id)
    assert request.failed == "not this one"
    assert call.failed is None


def test_a_process_creates_its_own_spans(triton, receiver):
    trace_id, headers = new_context()
    send(triton, "in_process", headers)
    request, call, inner = receiver.wait_for("request in_process", "call in_process", "of the request", trace=trace_id)
    assert is_chain(request, call)
    assert is_chain(request, inner)
    assert call.service == "tests"


def test_a_model_of_a_repository_creates_spans_and_passes_its_trace_on(triton, receiver):
    trace_id, headers = new_context()
    assert send(triton, "repeat", headers) == 200
    model, request, call, infer, inner = receiver.wait_for(
        "repeat", "request repeat", "call repeat", "infer double", "request double", trace=trace_id
    )
    assert is_chain(model, request, call)
    assert is_chain(model, infer, inner)  # as its code has it: trace=request.trace()


def test_the_gateway_continues_a_trace(triton, receiver):
    trace_id, headers = new_context()
    with gateway_of(triton) as gateway:
        gateway.post("double", {"x": [1]}, **headers)
        gateway.get("/health/ready")
    root, infer, request = receiver.wait_for("POST /v1/models/double", "infer double", "request double", trace=trace_id)
    assert root.parent == PARENT
    assert root.kind == 2
    assert 200 in (root.attributes.get(name) for name in ("http.status_code", "http.response.status_code"))
    assert is_chain(root, infer, request)
    assert not [span for span in receiver.spans() if "health" in span.name]


def test_malformed_contexts_do_not_fill_the_log(triton, caplog):
    _, headers = new_context()
    with gateway_of(triton) as gateway:
        for malformed in ("=,;;a=b;c", "a=" + "b" * 9000, "\x9b=1"):
            headers |= {"tracestate": malformed, "baggage": malformed}
            assert gateway.post("double", {"x": [1]}, **headers).status == 200
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_the_gateway_starts_a_trace_unless_clients_may_decide(triton, receiver):
    trace_id, headers = new_context()
    with gateway_of(triton, continue_traces=False) as gateway:
        gateway.post("double", {"x": [1]}, **headers)
    receiver.wait_until(lambda: [s for s in receiver.spans() if s.name.startswith("POST") and not s.parent])
    assert not receiver.spans(trace_id)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["double", "coroutine"])
def test_the_server_survives_tracing_every_request(name):
    with Receiver() as receiver, running_triton(trace_config=receiver.trace_config()) as triton:
        bind_floats(triton, "double", double, config=ModelConfig(max_batch_size=64))
        bind_floats(triton, "coroutine", coroutine)
        triton.run()
        server = server_of(triton)
        until = time.monotonic() + 30

        def send_for_a_while():
            with client_of(triton, "grpc") as client:
                while time.monotonic() < until:
                    client.infer(name, {"x": np.ones((1, 1), np.float32)})

        for sent in [Background(send_for_a_while) for _ in range(16)]:
            sent.join()
            assert sent.error is None
        assert server_of(triton) == server


OFF = """
import sys
sys.path[:0] = {path!r}
from serving import bind_floats, running_triton, send_floats
from pytriton.client import ModelClient
from pytriton.decorators import batch
with running_triton() as triton:
    bind_floats(triton, "double", batch(lambda x: [x * 2]))
    triton.run()
    with ModelClient(f"localhost:{{triton.config.http_port}}", "double") as client:
        assert client.infer_batch([[1.0]])["y"].tolist() == [[2.0]]
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_opentelemetry_is_imported_only_if_needed(tmp_path):
    code = OFF.format(path=sys.path[:1] + [entry for entry in sys.path if "integration" in entry])
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines()[-1:] == ["[]"], run.stderr
