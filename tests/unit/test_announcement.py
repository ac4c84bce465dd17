"""The lines that tell where models are served."""

from __future__ import annotations

import io
import logging
import sys
from unittest import mock

import pytest

from pytriton.announcement import Endpoints, ServedModel, endpoint_lines
from pytriton.utils.console import tell

HTTP, GRPC = "http://localhost:8000", "grpc://localhost:8001"


def test_a_model_has_a_line_with_its_url():
    assert endpoint_lines([ServedModel("Double", 2)], Endpoints(HTTP)) == [
        f"Model Double v2: {HTTP}/v2/models/Double/infer"
    ]


def test_versions_of_one_name_have_urls_of_their_own():
    lines = endpoint_lines([ServedModel("a", 1), ServedModel("a", 2), ServedModel("b", 1)], Endpoints(HTTP))
    assert [line.rpartition("/v2/models/")[2] for line in lines] == [
        "a/versions/1/infer",
        "a/versions/2/infer",
        "b/infer",
    ]


def test_streams_and_models_of_a_server_without_http_are_reached_over_grpc():
    both = Endpoints(HTTP, GRPC)
    assert endpoint_lines([ServedModel("Count", 1, streams=True)], both)[0] == f"Model Count v1: {GRPC}"
    assert endpoint_lines([ServedModel("Double", 1)], Endpoints(None, GRPC))[0] == f"Model Double v1: {GRPC}"


def test_each_other_endpoint_has_a_line():
    lines = endpoint_lines([], Endpoints(HTTP, GRPC, "http://localhost:8002", "http://localhost:8080"))
    assert lines == [
        f"gRPC: {GRPC}",
        "Metrics: http://localhost:8002/metrics",
        "Gateway: http://localhost:8080 (live page), http://localhost:8080/docs (every endpoint)",
    ]


def own_logger(name):
    logger = logging.getLogger(name)
    logger.propagate = False  # pytest has handlers above
    return logger


def test_without_logging_lines_go_to_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    tell(own_logger("test_announcement.bare"), ["one", "two"])
    assert sys.stderr.getvalue() == "one\ntwo\n"


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_a_standard_error_stream_that_cannot_be_written_changes_nothing(monkeypatch, error):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "write", mock.Mock(side_effect=error))
    monkeypatch.setattr(sys, "stderr", stream)
    tell(own_logger("test_announcement.broken"), ["one"])


def test_with_logging_lines_are_logged_and_not_printed(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log = io.StringIO()
    logger = own_logger("test_announcement.configured")
    logger.addHandler(logging.StreamHandler(log))
    tell(logger, ["one"])
    assert log.getvalue() == ""  # the program has not enabled INFO
    logger.setLevel(logging.INFO)
    tell(logger, ["two"])
    assert (log.getvalue(), sys.stderr.getvalue()) == ("two\n", "")
