"""Servers with custom settings, and what they report."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json

import numpy as np
import psutil
from serving import HOST, bind_floats, double, running_triton, server_of

from pytriton.triton import TritonConfig

X = np.ones((1, 1), np.float32)
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
COVERED = set()


def covers(*fields):
    """Says which settings a test is about."""
    assert set(fields) <= {field.name for field in dataclasses.fields(TritonConfig)}
    COVERED.update(fields)
    return lambda test: test


@contextlib.contextmanager
def double_served(**settings):
    """A server with these settings that serves the model ``double``."""
    with running_triton(**settings) as triton:
        bind_floats(triton, "double", double)
        triton.run()
        yield triton


def fetch(port, path, body=None, headers=None):
    """Speaks HTTP with any of the server's ports: returns status and content."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def metrics_text(triton):
    return fetch(triton.config.metrics_port, "/metrics")[1]


def listening(triton):
    """Where the server listens: addresses by port."""
    found = server_of(triton).net_connections("tcp")
    return {each.laddr.port: each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
