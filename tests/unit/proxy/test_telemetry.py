"""Tracers, trace contexts, and the spans of a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.proxy import telemetry
from pytriton.proxy.telemetry import tracer
from pytriton.proxy.telemetry.propagation import context_of, headers_of, start_request_span
from pytriton.proxy.telemetry.spans import start_spans
from pytriton.proxy.types import Request
from pytriton.proxy.wire.service import TraceActivity

URL = "http://localhost:9/v1/traces"
SETTINGS = ["mode=opentelemetry", f"opentelemetry,url={URL}"]
PARENT = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'


@pytest.fixture
def spans(monkeypatch):
    """Spans that have ended, by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracer, "_tracer", provider.get_tracer("test"))
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


@pytest.fixture
def no_tracer(monkeypatch):
    monkeypatch.setattr(tracer, "_tracer", None)


def test_a_tracer_is_set_once(no_tracer):
    assert telemetry.get_telemetry_tracer() is None
    telemetry.set_telemetry_tracer("mine")
    assert telemetry.get_telemetry_tracer() == "mine"
    with pytest.raises(ValueError, match="set already"):
        telemetry.set_telemetry_tracer("another")


def test_the_settings_name_the_receiver_and_the_resource():
    resources = ["opentelemetry,resource=service.name=digits", "opentelemetry,resource=a.b=c=d"]
    url, resource = telemetry.parse_trace_config([*SETTINGS, *resources, "rate=1"])
    assert url == URL
    assert resource.attributes["service.name"] == "digits"
    assert resource.attributes["a.b"] == "c=d"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [([], "mode=opentelemetry"), (["mode=triton"], "mode=opentelemetry"), (SETTINGS[:1], "url")],
)
def test_incomplete_settings_are_refused(settings, missing):
    with pytest.raises(ValueError, match=missing) as caught:
        telemetry.parse_trace_config(settings)
    assert isinstance(caught.value, PyTritonBadParameterError)


def test_settings_build_a_tracer():
    span = telemetry.build_proxy_tracer_from_triton_config(SETTINGS).start_span("one")
    assert span.resource.attributes["telemetry.sdk.name"] == "opentelemetry"


def test_worker_processes_get_the_settings_as_variables(no_tracer, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine")
    end = tracer.use_trace_config([*SETTINGS, "opentelemetry,bsp_schedule_delay=50"])
    try:
        assert tracer.telemetry_environment() == {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        assert tracer.current_tracer() is not None
    finally:
        end()
    assert tracer.telemetry_environment() == {}


def test_worker_processes_send_nothing_by_unsupported_protocols(no_tracer, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    end = tracer.use_trace_config(SETTINGS)
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" not in tracer.telemetry_environment()
    end()
    tracer.use_environment()
    assert tracer.telemetry_environment() == {}  # it has no tracer of its own
    assert "or OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in caplog.text


@pytest.mark.parametrize("settings", [None, [], ["mode=triton", "rate=1"]])
def test_other_settings_have_no_effect(no_tracer, settings):
    tracer.use_trace_config(settings)()
    assert tracer.telemetry_environment() == {}


def test_a_missing_receiver_delays_no_program(tmp_path):
    code = f"""
from pytriton.proxy.telemetry.tracer import current_tracer, use_trace_config
use_trace_config({SETTINGS!r})
current_tracer().start_span("lost").end()
"""
    environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=10)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each)).map(json.dumps))
def test_an_invalid_context_is_none(text):
    assert context_of(text) is None


def test_a_context_is_read_as_it_was_written(spans):
    span = telemetry.get_telemetry_tracer().start_span("one", context_of(PARENT))
    again = telemetry.get_telemetry_tracer().start_span("two", context_of(json.dumps(headers_of(span))))
    assert again.parent.span_id == span.get_span_context().span_id
    assert again.get_span_context().trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736


def test_the_spans_of_a_batch(spans):
    batch = start_spans([PARENT, "", PARENT], ["", "", "an id"], "m", 2, [1, 2, 3])
    batch.enter()
    batch.fail_request(2, ValueError("no"))
    batch.exit()
    batch.end()

    assert [request is not None for request in batch.requests] == [True, False, True]
    call = spans()["call m"]
    assert call.attributes["pytriton.batch.requests"] == 3
    assert call.attributes["pytriton.batch.rows"] == 6
    assert call.parent.span_id == batch.requests[0].get_span_context().span_id
    assert {link.context.span_id for link in call.links} == {
        batch.requests[number].get_span_context().span_id for number in (0, 2)
    }
    assert batch.requests[2].attributes["triton.request_id"] == "an id"
    assert batch.requests[2].status.description == "no"
    assert batch.requests[0].status.is_ok or batch.requests[0].status.is_unset


@pytest.mark.parametrize("contexts", [[""], ["nonsense"]])
def test_a_batch_without_a_trace_has_no_spans(spans, contexts):
    assert start_spans(contexts, [""], "m", 1, []) is None


def test_responses_of_a_stream_are_counted(spans):
    batch = start_spans([PARENT], [""], "m", 1, [])
    for final in (False, False, True):
        batch.responded(0, True, final)
    batch.end()
    request = spans()["request m"]
    assert request.attributes["pytriton.response.count"] == 3
    assert [event.name for event in request.events] == ["first response"]


def test_the_servers_steps_are_spans(spans):
    span = start_request_span("m", {})
    assert not span.is_followed
    times = {TraceActivity.QUEUE_START: 1000, TraceActivity.COMPUTE_START: 3000, TraceActivity.COMPUTE_END: 9000}
    span.end()
    for activity, time_ns in times.items():
        assert span.note_activity(activity, time_ns)
    assert span.is_followed
    assert not span.note_activity(TraceActivity.RELEASED, 0)
    found = spans()
    assert found["queue"].end_time - found["queue"].start_time == 2000
    assert found["compute"].end_time - found["compute"].start_time == 6000
    assert found["queue"].parent.span_id == found["infer m"].get_span_context().span_id


def test_a_span_is_passed_to_another_process_as_numbers(spans):
    span = telemetry.get_telemetry_tracer().start_span("here")
    there = telemetry.start_span_from_remote(telemetry.get_span_dict(span), "there")
    telemetry.end_span(there, "it failed")
    assert there.parent.span_id == span.get_span_context().span_id
    assert spans()["there"].status.description == "it failed"
    assert telemetry.start_span_from_remote(None, "nothing") is None
    assert telemetry.get_span_dict(None) is None


def test_a_requests_child_is_the_current_span(spans):
    request = Request({}, span=telemetry.get_telemetry_tracer().start_span("request"))
    with pytest.raises(ValueError, match="no"), request.traced_span("child"):
        raise ValueError("no")
    child = spans()["child"]
    assert child.parent.span_id == request.span.get_span_context().span_id
    assert "no" in child.status.description
