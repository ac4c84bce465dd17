"""A receiver of OpenTelemetry's spans over HTTP, as a collector is one."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import http.server
import threading

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from serving import HOST, wait_until


@dataclasses.dataclass
class Span:
    """A span that was received; ids in hexadecimal, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    attributes: dict
    links: set
    events: list
    failed: str | None
    service: str


class Receiver:
    """Collects spans that are sent to `url`, while it is entered."""

    def __init__(self):
        receiver = self
        self._spans = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver._spans += spans_of(body, self.headers["Content-Type"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}/v1/traces"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def trace_config(self, rate=1, service="tests"):
        """Triton's settings for traces that come here."""
        return [
            "mode=opentelemetry",
            f"rate={rate}",
            "level=TIMESTAMPS",
            f"opentelemetry,url={self.url}",
            f"opentelemetry,resource=service.name={service}",
            "opentelemetry,bsp_schedule_delay=50",
        ]

    def spans(self, trace=None):
        """The spans so far, of one trace or of all."""
        return [span for span in list(self._spans) if trace in (None, span.trace)]

    def wait_until(self, condition):
        """Waits for spans that meet a condition, and returns what it returned."""
        return wait_until(condition, 20, "the condition of the spans")

    def wait_for(self, *names, trace=None):
        """Waits for spans of these names, and returns the first one of each."""

        def found():
            by_name = {}
            for span in self.spans(trace):
                by_name.setdefault(span.name, span)
            return [by_name[name] for name in names] if by_name.keys() >= set(names) else None

        try:
            return wait_until(found, 20)
        except AssertionError:
            came = [f"{span.name} < {span.parent}" for span in self.spans(trace)]
            raise AssertionError(f"of the spans {names}, there came {came}") from None


def spans_of(body, content_type):
    """Reads an export, in either of OTLP's encodings."""
    request = ExportTraceServiceRequest()
    is_json = "json" in content_type
    if is_json:
        Parse(body, request)
    else:
        request.ParseFromString(body)

    def of_id(value):
        # In OTLP's JSON, ids are hexadecimal, which Parse takes for Base64.
        return base64.b64encode(value).decode().lower() if is_json else value.hex()

    return [
        Span(
            span.name,
            of_id(span.trace_id),
            of_id(span.span_id),
            of_id(span.parent_span_id),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.kind,
            _attributes(span.attributes),
            {of_id(link.span_id) for link in span.links},
            [event.name for event in span.events],
            span.status.message if span.status.code == 2 else None,
            _attributes(of_resource.resource.attributes).get("service.name", ""),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _attributes(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
